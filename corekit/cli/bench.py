"""`corekit bench`: options of the benchmarks of an engine and of a server. Parses only; measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .bench_accuracy import accuracy
from .bench_kv import memory, prefix
from .bench_options import configure, effort, effort_options, options_of, report
from .common import overrides, target
from .failing import CONFIG, failing
from .group import Group

if TYPE_CHECKING:
    from corekit.bench.verbs import Asked

F = TypeVar("F", bound=Callable[..., Any])


def _workload_options(name: str) -> Callable[[F], F]:
    return options_of(
        click.option(
            "--workload", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON file of workloads; without it the built-in ones."
        ),
        click.option("--name", help=f"Which workload of the file, or which of the built-in W1, W2 and W3.  [default: the file's only one, else {name}]"),
        click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=20261130, show_default=True, help="Seed of the built-in prompts, and of arrivals."),
        click.option("--prompts", type=click.Choice(["ids", "text"]), help="Form in which prompts are sent; without it ids where there are any."),
    )


_concurrency_option = click.option(
    "--concurrency", type=click.IntRange(1, 100_000), help="How many requests are in flight; without it what the workload is meant for."
)


@click.group(cls=Group)
def bench() -> None:
    """Measure an engine or a server.

    Every benchmark warms up, repeats, gives medians and spreads, and records how much processor time others took meanwhile.
    """


bench.add_command(prefix)
bench.add_command(memory)
bench.add_command(accuracy)


@bench.command()
@target
@overrides
@_workload_options("W1")
@effort_options()
def latency(target: str | None, overrides: tuple[str, ...], **options: Any) -> None:
    """Measure one request at a time, in this process."""
    from corekit.bench.verbs import bench_client

    report(lambda: bench_client("latency", configure(target, overrides), _asked(options, "W1"), None, effort(options), sys.stderr), options)


@bench.command()
@target
@overrides
@_workload_options("W2")
@_concurrency_option
@effort_options()
def throughput(target: str | None, overrides: tuple[str, ...], concurrency: int | None, **options: Any) -> None:
    """Measure many requests at once, in this process."""
    from corekit.bench.verbs import bench_client

    report(lambda: bench_client("throughput", configure(target, overrides), _asked(options, "W2"), concurrency, effort(options), sys.stderr), options)


@bench.command()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="Address of an OpenAI-compatible server: corekit or any other.")
@click.option("--model", default="", help="Name of the model at the server; without it the first that the server lists.")
@click.option("--api-key", default="", help="Key that is sent as a bearer token; env:NAME reads a variable.")
@click.option("--rate", type=click.FloatRange(0, 1e6, min_open=True), help="Requests per second of an open loop, with Poisson arrivals.")
@_concurrency_option
@_workload_options("W2")
@click.option("--vocab-size", type=click.IntRange(1, 2**31 - 1), help="Size of the server's vocabulary: built-in prompts are then sent as ids below it.")
@click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="Whether ignore_eos is sent; without it short answers are accepted.")
@click.option("--timeout", type=click.FloatRange(0, 86400, min_open=True), default=600.0, show_default=True, help="Seconds that one request may take.")
@click.option("--server-pid", type=click.IntRange(1, 2**31 - 1), help="Process of a local server, so that it is not foreign; without it the one at the port.")
@effort_options()
def serve(url: str, model: str, api_key: str, rate: float | None, concurrency: int | None, vocab_size: int | None, **options: Any) -> None:
    """Measure a running server, by streamed completions.

    Closed loop (--concurrency) unless an arrival rate is given (--rate). Failed requests are counted; any of them makes the exit code 1.
    """
    if rate is not None and concurrency is not None:
        raise click.UsageError("--rate and --concurrency exclude each other: an open loop does not wait for answers.")
    from corekit.bench.http_client import Server
    from corekit.bench.serving import Arrivals
    from corekit.bench.verbs import bench_server
    from corekit.compose.surroundings import variable

    with failing(CONFIG, debug=options["debug"]):
        key = variable(api_key, "--api-key")
    server = Server(url=url, model=model, api_key=key, timeout=options["timeout"], ignore_eos=options["ignore_eos"])
    arrivals = Arrivals(concurrency=concurrency, rate=rate, seed=options["seed"])
    result = report(lambda: bench_server(server, _asked(options, "W2"), vocab_size, arrivals, effort(options), sys.stderr, options["server_pid"]), options)
    if any(attempt["num_failed"] for attempt in result.attempts):
        raise click.exceptions.Exit(1)


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


def _asked(options: dict[str, Any], default: str) -> Asked:
    from corekit.bench.verbs import Asked

    return Asked(file=options["file"], name=options["name"], default=default, seed=options["seed"], prompts=options["prompts"])

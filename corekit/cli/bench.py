"""`corekit bench`: options of the four benchmarks, their tables and JSON files. Parses and prints; measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .common import overrides, read, talk, target
from .failing import CONFIG, FAILED, failing
from .group import Group
from .log import set_up
from .signals import Stopped, stopping

if TYPE_CHECKING:
    from corekit.bench.measure import Effort
    from corekit.bench.result import Result
    from corekit.bench.verbs import Asked, Configure

F = TypeVar("F", bound=Callable[..., Any])


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


_effort_options = _options(
    click.option("--reps", type=click.IntRange(1, 1000), default=3, show_default=True, help="How many repetitions are measured."),
    click.option("--warmup", type=click.IntRange(0, 100), default=1, show_default=True, help="How many repetitions warm up before them."),
    click.option(
        "--max-foreign",
        type=click.FloatRange(0, 4096),
        default=0.3,
        show_default=True,
        help="How many cores other processes may use before a repetition counts as disturbed.",
    ),
    click.option("--retries", type=click.IntRange(0, 100), default=2, show_default=True, help="How often a disturbed repetition is measured again at most."),
    talk,
    click.option("--json", "json_file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), help="File for the result; - is stdout."),
)


def _workload_options(name: str) -> Callable[[F], F]:
    return _options(
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


@bench.command()
@target
@overrides
@_workload_options("W1")
@_effort_options
def latency(target: str | None, overrides: tuple[str, ...], **options: Any) -> None:
    """Measure one request at a time, in this process."""
    from corekit.bench.verbs import bench_client

    _report(lambda: bench_client("latency", _configure(target, overrides), _asked(options, "W1"), None, _effort(options), sys.stderr), options)


@bench.command()
@target
@overrides
@_workload_options("W2")
@_concurrency_option
@_effort_options
def throughput(target: str | None, overrides: tuple[str, ...], concurrency: int | None, **options: Any) -> None:
    """Measure many requests at once, in this process."""
    from corekit.bench.verbs import bench_client

    _report(lambda: bench_client("throughput", _configure(target, overrides), _asked(options, "W2"), concurrency, _effort(options), sys.stderr), options)


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
@_effort_options
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
    result = _report(lambda: bench_server(server, _asked(options, "W2"), vocab_size, arrivals, _effort(options), sys.stderr, options["server_pid"]), options)
    if any(attempt["num_failed"] for attempt in result.attempts):
        raise click.exceptions.Exit(1)


@bench.command()
@target
@overrides
@click.option("--running", type=click.IntRange(1, 65536), default=1000, show_default=True, help="How many requests decode.")
@click.option("--waiting", type=click.IntRange(0, 10**6), default=10_000, show_default=True, help="How many requests wait for a seat.")
@click.option("--steps", type=click.IntRange(2, 100_000), default=300, show_default=True, help="How many steps one repetition has.")
@_effort_options
def engine(target: str | None, overrides: tuple[str, ...], running: int, waiting: int, steps: int, **options: Any) -> None:
    """Measure what planning and committing a step cost, without a model."""
    from corekit.bench.planning import Population
    from corekit.bench.verbs import bench_engine

    population = Population(num_running=running, num_waiting=waiting, num_steps=steps)
    _report(lambda: bench_engine(_configure(target, overrides), population, _effort(options), sys.stderr), options)


def _configure(target: str | None, overrides: tuple[str, ...]) -> Configure:
    return lambda given: read(target, overrides, given)


def _asked(options: dict[str, Any], default: str) -> Asked:
    from corekit.bench.verbs import Asked

    return Asked(file=options["file"], name=options["name"], default=default, seed=options["seed"], prompts=options["prompts"])


def _effort(options: dict[str, Any]) -> Effort:
    from corekit.bench.measure import Effort

    return Effort(warmup=options["warmup"], reps=options["reps"], retries=options["retries"], max_foreign=options["max_foreign"])


def _report(run: Callable[[], Result], options: dict[str, Any]) -> Result:
    """Measure; then table and JSON. The table leaves stdout to JSON that was sent there."""
    from corekit.bench.result import to_json, write_json
    from corekit.bench.table import render

    set_up(options["log_level"])
    json_file: Path | None = options["json_file"]
    to_stdout = json_file is not None and str(json_file) == "-"
    try:
        with stopping(), failing(FAILED, debug=options["debug"]):
            result = run()
            if json_file is not None and not to_stdout:
                write_json(result, json_file)
    except Stopped as stopped:
        raise click.exceptions.Exit(stopped.code) from None
    click.echo(render(result), nl=False, err=to_stdout)
    if to_stdout:
        click.echo(to_json(result).decode(), nl=False)
    return result

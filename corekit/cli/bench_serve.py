"""`corekit bench serve`: its options. Parses only; measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from .bench_options import effort, effort_options, options_of, report
from .bench_workload import FILE, asked, concurrency_option, output_options, outputs, workload_options
from .failing import CONFIG, failing

if TYPE_CHECKING:
    from corekit.bench.reenacted import AskedRecording
    from corekit.bench.verbs import Asked

_OF_ARRIVALS: Mapping[str, str] = {
    "max_requests": "--max-requests",
    "speedup": "--speedup",
    "shorten": "--shorten",
    "longest": "--longest",
    "block_tokens": "--block-tokens",
}
_server_options = options_of(
    click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="Address of an OpenAI-compatible server: corekit or any other."),
    click.option("--model", default="", help="Name of the model at the server; without it the first that the server lists."),
    click.option("--api-key", default="", help="Key that is sent as a bearer token; env:NAME reads a variable."),
)
_recording_options = options_of(
    click.option(
        "--arrivals",
        type=FILE,
        help="Recorded requests to replay as an open loop: their times, lengths and shared blocks. JSONL as Mooncake's traces, or CSV as Azure's.",
    ),
    click.option("--max-requests", type=click.IntRange(1, 10**6), help="How many of the recorded requests are replayed.  [default: 1000]"),
    click.option("--speedup", type=click.FloatRange(0, 1e6, min_open=True), help="How many times faster they come; --rate scales to a rate instead."),
    click.option("--shorten", type=click.IntRange(1, 10**6), help="Divides their lengths and the sizes of shared blocks.  [default: 1]"),
    click.option("--longest", type=click.IntRange(2, 10**7), help="Tokens, prompt and answer together, that longer ones are clipped to."),
    click.option("--block-tokens", type=click.IntRange(1, 10**6), help="Tokens that a block of hash_ids stands for.  [default: 512, as in Mooncake's]"),
)


@click.command()
@_server_options
@click.option("--rate", type=click.FloatRange(0, 1e6, min_open=True), help="Requests per second of an open loop: Poisson, or of the recording on average.")
@concurrency_option
@_recording_options
@workload_options("W2")
@click.option("--vocab-size", type=click.IntRange(1, 2**31 - 1), help="Size of the server's vocabulary: prompts that are made are then sent as ids below it.")
@click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="Whether ignore_eos is sent; without it short answers are accepted.")
@click.option("--timeout", type=click.FloatRange(0, 86400, min_open=True), default=600.0, show_default=True, help="Seconds that one request may take.")
@click.option("--server-pid", type=click.IntRange(1, 2**31 - 1), help="Process of a local server, so that it is not foreign; without it the one at the port.")
@output_options
@effort_options()
def serve(url: str, model: str, api_key: str, rate: float | None, concurrency: int | None, vocab_size: int | None, **options: Any) -> None:
    """Measure a running server, by streamed completions.

    Closed loop (--concurrency) unless an arrival rate (--rate) or recorded arrivals (--arrivals) are given. In an open loop latencies count
    from when a request was due. Failed requests are counted; any of them makes the exit code 1.
    """
    if concurrency is not None and (rate is not None or options["arrivals"] is not None):
        loop = "--rate" if rate is not None else "--arrivals"
        raise click.UsageError(f"{loop} and --concurrency exclude each other: an open loop does not wait for answers.")
    work = _recording(rate, options) if options["arrivals"] is not None else _workload(options)
    from corekit.bench.arrivals import Arrivals
    from corekit.bench.http_client import Server
    from corekit.bench.verbs import bench_server
    from corekit.compose.surroundings import variable

    with failing(CONFIG, debug=options["debug"]):
        key = variable(api_key, "--api-key")
    server = Server(url=url, model=model, api_key=key, timeout=options["timeout"], ignore_eos=options["ignore_eos"])
    arrivals = Arrivals(concurrency=concurrency, rate=rate, seed=options["seed"])
    result = report(
        lambda: bench_server(server, work, vocab_size, arrivals, effort(options), sys.stderr, options["server_pid"], outputs(options)),
        options,
    )
    if any(attempt["num_failed"] for attempt in result.attempts):
        raise click.exceptions.Exit(1)


def _workload(options: dict[str, Any]) -> Asked:
    for name, option in _OF_ARRIVALS.items():
        if options[name] is not None:
            raise click.UsageError(f"{option} belongs to recorded requests: add --arrivals FILE.")
    return asked(options, "W2")


def _recording(rate: float | None, options: dict[str, Any]) -> AskedRecording:
    for name, option in {"file": "--workload", "name": "--name"}.items():
        if options[name] is not None:
            raise click.UsageError(f"--arrivals and {option} exclude each other: a recording brings its own requests.")
    if rate is not None and options["speedup"] is not None:
        raise click.UsageError("--rate and --speedup exclude each other: both say how fast the recorded requests come.")
    from corekit.bench.reenacted import AskedRecording

    given = {name: options[name] for name in _OF_ARRIVALS if options[name] is not None}
    return AskedRecording(file=options["arrivals"], rate=rate, seed=options["seed"], prompts=options["prompts"], **given)

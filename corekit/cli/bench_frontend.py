"""`corekit bench frontend`: its options. Parses only; measures nothing."""

from __future__ import annotations

import sys
from typing import Any

import click

from .bench_options import configure, effort, effort_options, report
from .common import overrides


@click.command()
@overrides
@click.option("--tokens", "num_tokens", type=click.IntRange(256, 10**7), default=20_000, show_default=True, help="Tokens of one measurement, over its streams.")
@click.option("--requests", "num_requests", type=click.IntRange(64, 10**6), default=2_000, show_default=True, help="Answers of one measurement.")
@click.option("--timeout", type=click.FloatRange(0, 86400, min_open=True), default=60.0, show_default=True, help="Seconds of silence from the server.")
@effort_options()
def frontend(overrides: tuple[str, ...], num_tokens: int, num_requests: int, timeout: float, **options: Any) -> None:
    """Measure what a streamed token, a short answer and a step cost beside the model.

    A server with the scripted model runs in a process of its own. Figures are microseconds of its processor time per token at
    1, 16 and 128 streams, answers per second at 1, 16 and 64 connections, and the engine's own time per sequence and step at
    1, 64 and 256 sequences. The load share says how much of both processes' time was the sender's.
    """
    from corekit.bench.frontend import FrontendLoad, bench_frontend

    load = FrontendLoad(num_tokens=num_tokens, num_requests=num_requests, timeout=timeout)
    report(lambda: bench_frontend(configure(None, overrides), overrides, load, effort(options), sys.stderr), options)

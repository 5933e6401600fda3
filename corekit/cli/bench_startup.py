"""`corekit bench startup`: its options. Parses only; measures nothing."""

from __future__ import annotations

import sys
from typing import Any

import click

from .bench_options import effort, effort_options, report
from .common import overrides, target


@click.command()
@target
@overrides
@click.option("--tokens", "num_tokens", type=click.IntRange(1, 4096), default=16, show_default=True, help="Tokens of the answer.")
@click.option("--timeout", type=click.FloatRange(0, 86400, min_open=True), default=120.0, show_default=True, help="Seconds that one start may take.")
@effort_options()
def startup(target: str | None, overrides: tuple[str, ...], num_tokens: int, timeout: float, **options: Any) -> None:
    """Measure the start of a server: time to the last byte of a short chat answer, and memory.

    Every repetition is a process of its own; warming up puts its files into the page cache. Beside it stands a process that
    only imports PyTorch.
    """
    from corekit.bench.startup import Start, bench_startup

    arguments = (*([target] if target else []), *(f"--set={one}" for one in overrides))
    report(lambda: bench_startup(Start(arguments=arguments, num_tokens=num_tokens, timeout=timeout), effort(options), sys.stderr), options)

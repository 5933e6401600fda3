"""What `corekit bench latency`, `throughput` and `serve` share: options of workloads, and of files beside the result. Parses only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .bench_options import options_of

if TYPE_CHECKING:
    from corekit.bench.outputs import Outputs
    from corekit.bench.verbs import Asked

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_NEW_FILE = click.Path(dir_okay=False, path_type=Path)


def workload_options(name: str) -> Callable[[F], F]:
    return options_of(
        click.option("--workload", "file", type=FILE, help="JSON file of workloads; without it the built-in ones."),
        click.option("--name", help=f"Which workload of the file, or which of the built-in W1, W2 and W3.  [default: the file's only one, else {name}]"),
        click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=20261130, show_default=True, help="Seed of prompts that are made, and of arrivals."),
        click.option("--prompts", type=click.Choice(["ids", "text"]), help="Form in which prompts are sent; without it ids where there are any."),
    )


concurrency_option = click.option(
    "--concurrency", type=click.IntRange(1, 100_000), help="How many requests are in flight; without it what the workload is meant for."
)
output_options = options_of(
    click.option("--plot", type=_NEW_FILE, help='PNG file for a plot of latencies, throughput and arrivals. Needs matplotlib: pip install "corekit[plot]".'),
    click.option("--trace", type=_NEW_FILE, help="JSON file for a Chrome trace, which Perfetto and chrome://tracing show."),
)


def asked(options: dict[str, Any], default: str) -> Asked:
    from corekit.bench.verbs import Asked

    return Asked(file=options["file"], name=options["name"], default=default, seed=options["seed"], prompts=options["prompts"])


def outputs(options: dict[str, Any]) -> Outputs:
    from corekit.bench.outputs import Outputs

    return Outputs(plot=options["plot"], trace=options["trace"])

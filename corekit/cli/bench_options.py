"""What the verbs of `corekit bench` share: options of repetitions, reading the configuration, reporting. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .common import read, talk
from .failing import FAILED, failing
from .log import set_up
from .signals import Stopped, stopping

if TYPE_CHECKING:
    from corekit.bench.measure import Effort
    from corekit.bench.result import Result
    from corekit.bench.verbs import Configure

F = TypeVar("F", bound=Callable[..., Any])


def options_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


def effort_options(count: str = "--reps", *, default: int = 3, of: str = "repetitions") -> Callable[[F], F]:
    """How often to measure, what to put up with, and where the result goes."""
    return options_of(
        click.option(count, "reps", type=click.IntRange(1, 1000), default=default, show_default=True, help=f"How many {of} are measured."),
        click.option("--warmup", type=click.IntRange(0, 100), default=1, show_default=True, help="How many warm up before them."),
        click.option(
            "--max-foreign",
            type=click.FloatRange(0, 4096),
            default=0.3,
            show_default=True,
            help="How many cores other processes may use before one counts as disturbed.",
        ),
        click.option("--retries", type=click.IntRange(0, 100), default=2, show_default=True, help="How often a disturbed one is measured again at most."),
        result_options,
    )


def result_options(function: F) -> F:
    """How to talk, and where the result goes."""
    to_file = click.option("--json", "json_file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), help="File for the result; - is stdout.")
    return talk(to_file(function))


def configure(target: str | None, overrides: tuple[str, ...]) -> Configure:
    return lambda given: read(target, overrides, given)


def effort(options: dict[str, Any]) -> Effort:
    from corekit.bench.measure import Effort

    quick = options.get("quick", False)
    return Effort(
        warmup=options["warmup"],
        reps=min(options["reps"], 2) if quick else options["reps"],
        retries=0 if quick else options["retries"],
        max_foreign=options["max_foreign"],
    )


def report(run: Callable[[], Result], options: dict[str, Any]) -> Result:
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

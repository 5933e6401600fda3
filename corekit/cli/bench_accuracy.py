"""`corekit bench accuracy`: its options. Parses only; measures nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from corekit.bench.precisions import PRECISIONS, USUAL

from .bench_options import configure, report, result_options
from .common import overrides, target
from .failing import FAILED, USAGE, fail, failing

MAX_ROWS = 1024
PREFILL_WORD = "prefill"


def _counts(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    """How many rows of one token a step has; 0: whole chunks."""
    for value in values:
        if value != PREFILL_WORD and not (value.isascii() and value.isdecimal() and len(value) <= 9 and 1 <= int(value) <= MAX_ROWS):
            raise click.BadParameter(f"must be {PREFILL_WORD!r} or an integer from 1 to {MAX_ROWS}, got {value!r}", ctx, option)
    return tuple(dict.fromkeys(0 if value == PREFILL_WORD else int(value) for value in values))


@click.command()
@target
@overrides
@click.option(
    "--precision",
    "names",
    type=click.Choice(list(PRECISIONS)),
    multiple=True,
    help=f"A set of values for dtype, quantization and kv_dtype; may be repeated.  [default: those of {', '.join(USUAL)} that can run]",
)
@click.option(
    "--variant", "variants", metavar="NAME=TABLE.KEY=VALUE,...", multiple=True, help="A precision of your own: a name, and what to set; may be repeated."
)
@click.option(
    "--rows",
    metavar=f"[{PREFILL_WORD}|N]",
    multiple=True,
    default=(PREFILL_WORD, "1", "8"),
    show_default=True,
    callback=_counts,
    help="Shape of the steps: whole chunks of prompts, or so many rows of one token, as in decoding; may be repeated.",
)
@click.option("--tokens", type=click.IntRange(1, 10**8), default=20_480, show_default=True, help="How many tokens of the text at least.")
@click.option("--window", type=click.IntRange(2, 2**20), default=512, show_default=True, help="Tokens of each prompt; a token sees those of its window.")
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="UTF-8 file to measure on; without it the documentation topics that Python comes with.",
)
@click.option("--max-ratio", type=click.FloatRange(0, 1e6, min_open=True), help="Highest perplexity beside that of float32; one above makes the exit code 1.")
@click.option(
    "--max-foreign",
    type=click.FloatRange(0, 4096),
    default=0.3,
    show_default=True,
    help="How many cores other processes may use before the times of a round are remarked.",
)
@result_options
def accuracy(target: str | None, overrides: tuple[str, ...], names: tuple[str, ...], variants: tuple[str, ...], rows: tuple[int, ...], **options: Any) -> None:
    """Measure perplexity and greedy agreement of every precision beside float32.

    On a fixed English text, in prefill steps and in steps of one token a row: kernels differ by how many tokens they are given.
    A precision that cannot run is said to be missing.
    """
    from corekit.bench.accuracy import AskedAccuracy, bench_accuracy, exceeding
    from corekit.bench.precisions import chosen
    from corekit.bench.scoring import Shape

    with failing(USAGE, debug=options["debug"]):
        precisions = chosen(names, variants)
    asked = AskedAccuracy(
        precisions=precisions,
        shapes=[Shape(count) for count in rows],
        text=options["text"],
        num_tokens=options["tokens"],
        window=options["window"],
    )
    result = report(lambda: bench_accuracy(configure(target, overrides), asked, options["max_foreign"], sys.stderr), options)
    max_ratio = options["max_ratio"]
    if max_ratio is not None and (found := exceeding(result.sections, max_ratio)):
        fail(f"--max-ratio {max_ratio:g}: {'; '.join(found)}", FAILED)

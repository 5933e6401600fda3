"""`bench accuracy`: what each precision costs in accuracy, beside float32, from its options to its result. Knows no command line."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from corekit.api import CorekitError

from .agreement import Scored, compare
from .english import Text, Windows, cut, read_text
from .errors import BenchError, BenchUsage
from .found import alone
from .machine import CpuMeter
from .measure import Attempt, measure
from .precisions import REFERENCE, Precision, reference
from .progress import Progress
from .result import Result, Row, attempt_facts
from .scoring import ASKED_TOKENS, PREFILL, Round, Scoring, Shape, Strides, Watch, room
from .verbs import UNLIMITED_QUEUE, Configure

log = logging.getLogger(__name__)

RATIOS, VERDICTS, MISSING = "accuracy", "verdict", "not available"
TOLERATED = 0.01
"""By how much a perplexity may differ from the reference's, as a share of it, for its verdict to be yes."""
FEW_ROWS = 0.9
"""Steps that had fewer rows than this share of what was asked for, in the mean, are remarked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAccuracy:
    precisions: Sequence[Precision]
    shapes: Sequence[Shape]
    text: Path | None = None
    """None: the built-in one."""
    num_tokens: int
    window: int
    """Tokens of each prompt."""

    @property
    def all_shapes(self) -> tuple[Shape, ...]:
        """With the one that the reference is taken in."""
        return tuple(dict.fromkeys((PREFILL, *self.shapes)))


@dataclass(kw_only=True)
class Accuracy:
    """One precision after the other, each in an engine of its own; the reference first."""

    configure: Configure
    asked: AskedAccuracy
    max_foreign: float
    progress: Progress
    rows: list[Row] = field(default_factory=list)
    missing: list[Row] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    target: dict[str, list[str]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    async def run(self) -> Result:
        from corekit.compose.errors import ConfigError

        text = read_text(self.asked.text)
        self.configure({})  # what is wrong with the file and the options is not the reference's fault
        try:
            expected, windows = await self._reference(text)
        except ConfigError as error:
            raise ConfigError([f"{REFERENCE}, the reference: {problem}" for problem in error.problems]) from error
        for precision in self.asked.precisions:
            if precision.name != REFERENCE:
                await self._precision(precision, windows, expected)
        noisy = [attempt for attempt in self.attempts if attempt["noisy"]]
        if noisy:
            self.remarks.append(
                f"in {len(noisy)} of {len(self.attempts)} rounds other processes used more than {self.max_foreign:g} cores: "
                "quote none of their tokens/s; what was computed does not depend on it"
            )
        sections = {RATIOS: self.rows, VERDICTS: verdicts(self.rows), MISSING: self.missing}
        return Result(
            bench="accuracy",
            subject={
                "text": text.name,
                "sha256": text.sha256,
                "windows": len(windows.prompts),
                "tokens_a_window": windows.size,
                "scored_tokens": windows.num_scored,
                "reference": f"{REFERENCE}, {PREFILL}",
            },
            target=dict(self.target),
            spreads={},
            percentiles={},
            sections={title: rows for title, rows in sections.items() if rows},
            attempts=self.attempts,
            remarks=self.remarks,
        )

    async def _reference(self, text: Text) -> tuple[tuple[Scored, ...], Windows]:
        """What it says of the windows, which its tokenizer cuts. What is wrong with it is wrong with all."""
        precision = reference()
        with self._engine(precision) as (scoring, parts):
            largest = scoring.client.model.max_model_len
            if self.asked.window + ASKED_TOKENS > largest:
                raise BenchUsage(f"--window {self.asked.window}: and one generated token do not fit into a context of {largest}. Take a shorter window.")
            windows = cut(text, scoring.client.tokenizer, size=self.asked.window, num_tokens=self.asked.num_tokens)
            found = await self._round(precision, scoring, windows, PREFILL)
            self._add(precision, parts, PREFILL, found, found.scored)
            wanted = precision.name in [one.name for one in self.asked.precisions]
            for shape in self.asked.shapes if wanted else ():
                if shape != PREFILL:
                    self._add(precision, parts, shape, await self._round(precision, scoring, windows, shape), found.scored)
        return found.scored, windows

    async def _precision(self, precision: Precision, windows: Windows, expected: Sequence[Scored]) -> None:
        """One that is refused, or that gives no figures, is said to be missing."""
        shape: Shape | None = None
        try:
            with self._engine(precision) as (scoring, parts):
                for shape in self.asked.shapes:
                    self._add(precision, parts, shape, await self._round(precision, scoring, windows, shape), expected)
        except BenchError:
            raise
        except Exception as error:
            log.debug("precision %s", precision.name, exc_info=error)
            kind = "" if isinstance(error, CorekitError) else f"{type(error).__name__}: "  # parts refuse weights with errors of their own
            self.missing.append(
                {
                    "precision": precision.name,
                    "shape": "any" if shape is None else str(shape),
                    "asked_for": precision.asked_for,
                    "reason": kind + " ".join(str(error).split()),
                }
            )

    @contextmanager
    def _engine(self, precision: Precision) -> Iterator[tuple[Scoring, str]]:
        """An engine of this precision, and the parts that compute in it."""
        from corekit.compose.assemble import assemble

        asked = self.asked
        settings = {**UNLIMITED_QUEUE, **precision.settings}
        config = self.configure({**settings, **room(asked.window, asked.all_shapes, self.configure(settings).block_allocator.block_size)})
        policy, watch = Strides(), Watch(self.progress)
        with assemble(config, scheduler_policy=policy, frontends=(), observers=(watch,)) as assembly:
            known = [line for lines in self.target.values() for line in lines]
            self.target[precision.name] = [line for line in assembly.summary() if line not in known]
            parts = ", ".join(assembly.composition.one(slot).name for slot in ("model", "attention_backend"))
            yield Scoring(client=assembly.client, policy=policy, watch=watch, progress=self.progress), parts
        gc.collect()  # two sets of weights at once might be more than there is memory

    async def _round(self, precision: Precision, scoring: Scoring, windows: Windows, shape: Shape) -> Round:
        await scoring.warm(windows, shape)

        async def run(number: int, label: str) -> Round:
            return await scoring.run(windows, shape, f"{precision.name}, {shape}")

        attempts: list[Attempt[Round]] = await measure(run, alone(self.max_foreign), CpuMeter)
        self.attempts += [{"precision": precision.name, "shape": str(shape), **attempt_facts(attempt)} for attempt in attempts]
        return attempts[0].value

    def _add(self, precision: Precision, parts: str, shape: Shape, found: Round, expected: Sequence[Scored]) -> None:
        beside = compare(found.scored, expected)
        rows_per_step = found.num_rows / found.num_steps
        if rows_per_step < FEW_ROWS * shape.num_rows:
            self.remarks.append(f"{precision.name}, {shape}: steps had {rows_per_step:.1f} rows in the mean. Is max_num_batched_tokens too small?")
        self.rows.append(
            {
                "precision": precision.name,
                "shape": str(shape),
                "parts": parts,
                "perplexity": beside.perplexity,
                "ratio": beside.ratio,
                "more,_%": 100 * (beside.ratio - 1),
                "+/-,_%": None if beside.uncertainty is None else 100 * beside.uncertainty,
                "agreement,_%": 100 * beside.agreement,
                "mean_|d_ln_p|": beside.difference,
                "tokens/s": found.num_tokens / found.seconds,
                "tokens/step": found.num_tokens / found.num_steps,
                "rows/step": rows_per_step,
            }
        )


def verdicts(rows: Sequence[Row]) -> list[Row]:
    """One line a precision: its worst shape, and whether its perplexity stays within one percent of the reference's."""
    found: list[Row] = []
    for name in dict.fromkeys(row["precision"] for row in rows):
        mine = [row for row in rows if row["precision"] == name]
        worst = max(mine, key=lambda row: abs(row["ratio"] - 1))
        found.append(
            {
                "precision": name,
                "worst_shape": worst["shape"],
                "more,_%": worst["more,_%"],
                "least_agreement,_%": min(row["agreement,_%"] for row in mine),
                f"perplexity_within_{TOLERATED:.0%}_of_{REFERENCE}": abs(worst["ratio"] - 1) <= TOLERATED,
            }
        )
    return found


def exceeding(sections: Mapping[str, Sequence[Row]], max_ratio: float) -> list[str]:
    """What breaks a limit of the ratio: perplexities above it, and precisions that were asked for by name and gave none."""
    found = [f"{row['precision']}, {row['shape']}: {row['ratio']:.5f}" for row in sections[RATIOS] if not row["ratio"] <= max_ratio]
    return found + [f"{row['precision']}: not available" for row in sections.get(MISSING, ()) if row["asked_for"]]


def bench_accuracy(configure: Configure, asked: AskedAccuracy, max_foreign: float, err: TextIO) -> Result:
    """Every precision in every shape, beside the reference in whole chunks."""
    return asyncio.run(Accuracy(configure=configure, asked=asked, max_foreign=max_foreign, progress=Progress(err)).run())

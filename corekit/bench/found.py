"""What one part of a benchmark found, and the result that several parts make together. Knows nothing of how it was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .measure import Attempt, Effort
from .result import Result, Row, attempt_facts, noise_remarks
from .statistics import median_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Tables of figures, with the attempts they were taken from: how busy the machine was meanwhile stands there."""

    sections: Mapping[str, Sequence[Row]]
    attempts: Sequence[Attempt[Any]]
    target: Mapping[str, Any] = field(default_factory=dict)
    """Who was asked, where it is no other part's."""
    remarks: Sequence[str] = ()


def joined(bench: str, subject: Mapping[str, Any], parts: Mapping[str, Found], effort: Effort) -> Result:
    """One result of all parts, in their order."""
    target: dict[str, Any] = {}
    for found in parts.values():
        target.update(found.target)
    return Result(
        bench=bench,
        subject=dict(subject),
        target=target,
        spreads={},
        percentiles={},
        sections={title: list(rows) for found in parts.values() for title, rows in found.sections.items()},
        attempts=[{"part": part, **attempt_facts(attempt)} for part, found in parts.items() for attempt in found.attempts],
        remarks=[remark for found in parts.values() for remark in found.remarks]
        + noise_remarks([attempt for found in parts.values() for attempt in found.attempts], effort.max_foreign),
    )


def interval_row(figure: str, values: Iterable[float]) -> Row:
    """The median of a figure of every pair, and between what it lies."""
    one = median_interval(values)
    return {"figure": figure, "pairs": one.num_samples, "low": one.low, "median": one.median, "high": one.high, "confidence": f"{one.confidence:.1%}"}


def alone(max_foreign: float) -> Effort:
    """Of a part that is measured once, because what it counts does not depend on who else is there."""
    return Effort(warmup=0, reps=1, retries=0, max_foreign=max_foreign)

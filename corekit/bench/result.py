"""What a benchmark found, as a value: for a JSON file and for a table. Knows nothing of how it was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from .machine import machine_facts
from .measure import Attempt
from .statistics import Percentiles, Spread, percentiles, spread
from .whole_file import write_whole

FORMAT = 1
"""Version of the JSON."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


Row = Mapping[str, Any]
"""Figures by name, in the order of their columns; None where one has no meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Figures of the kept repetitions, and every attempt at them. Times are in seconds, percentiles are over all kept repetitions together."""

    bench: str
    """The verb: latency, throughput, serve, engine, prefix, memory, accuracy, startup or frontend."""
    subject: dict[str, Any]
    """What was asked: workload, concurrency or rate, counts."""
    target: dict[str, Any]
    """Who was asked: the assembled engine's summary, or the server."""
    spreads: dict[str, Spread]
    """Figures that a repetition has one of."""
    percentiles: dict[str, Percentiles]
    steps: dict[str, Percentiles] = field(default_factory=dict)
    """Seconds of each phase of a step, where the engine is in this process."""
    sections: dict[str, list[Row]] = field(default_factory=dict)
    """Figures that are not of repetitions: title -> rows with the same names."""
    attempts: list[dict[str, Any]]
    remarks: list[str]
    """What a reader must know before quoting a number."""
    format: int = FORMAT
    time: str = field(default_factory=_now)
    machine: dict[str, Any] = field(default_factory=machine_facts)


def spreads_of(kept: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    return {name: spread(one[name] for one in kept) for name in kept[0]}


def pooled(kept: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, Percentiles]:
    """Percentiles over all repetitions; a kind without a sample is left out."""
    joined = {name: [value for one in kept for value in one[name]] for name in kept[0]}
    return {name: percentiles(values) for name, values in joined.items() if values}


def attempt_facts(attempt: Attempt[Any]) -> dict[str, Any]:
    cpu = attempt.cpu
    return {
        "repetition": attempt.number,
        "kept": attempt.kept,
        "noisy": attempt.noisy,
        "measured_seconds": cpu.seconds,
        "own_cores": cpu.own_cores,
        "foreign_cores": cpu.foreign_cores,
    }


def noise_remarks(attempts: Sequence[Attempt[Any]], max_foreign: float) -> list[str]:
    remarks = []
    rejected = [attempt for attempt in attempts if not attempt.kept]
    noisy = [attempt for attempt in attempts if attempt.kept and attempt.noisy]
    if rejected:
        remarks.append(f"{len(rejected)} disturbed repetitions were measured again")
    if noisy:
        remarks.append(f"NOISY: in {len(noisy)} of the kept repetitions other processes used more than {max_foreign:g} cores; quote none of these numbers")
    unknown = [attempt for attempt in attempts if attempt.kept and attempt.cpu.foreign_cores is None]
    if unknown:
        remarks.append(f"foreign CPU is not known in {len(unknown)} of the kept repetitions: they were too short, or the server's share cannot be told apart")
    return remarks


def write_json(result: Result, path: Path) -> None:
    """Whole or not at all."""
    write_whole(path, to_json(result), "--json")


def to_json(result: Result) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"

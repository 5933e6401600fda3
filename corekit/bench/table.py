"""Prints a result for people. Knows names and units of figures, nothing of how they came about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .result import Result, Row
from .statistics import Percentiles, Spread

_NAMES: Mapping[str, str] = {
    "seconds": "duration, s",
    "requests_per_second": "requests/s",
    "output_tokens_per_second": "output tokens/s",
    "total_tokens_per_second": "total tokens/s",
    "ttft": "TTFT, ms",
    "tpot": "TPOT, ms",
    "itl": "ITL, ms",
    "e2e": "E2E, ms",
    "late": "sent late, ms",
    "in_all": "in all, ms",
    "step_input": "step input, ms",
}


def render(result: Result) -> str:
    return "\n".join(_lines(result)) + "\n"


def _lines(result: Result) -> Iterator[str]:
    machine = result.machine
    versions = machine["versions"]
    yield f"corekit bench {result.bench}: {_joined(result.subject)}"
    yield f"machine     {machine['cpu']}, {machine['cores']} cores; " + ", ".join(f"{name} {version}" for name, version in versions.items())
    for name, value in result.target.items():
        for line in value if isinstance(value, list) else [value]:
            yield f"{name:<11} {line}"
    yield f"repetitions {_repetitions(result)}"
    yield ""
    yield from _spreads(result.spreads)
    yield from _percentiles("latency", result.percentiles)
    yield from _percentiles("step", result.steps)
    for title, rows in result.sections.items():
        yield from _section(title, rows)
    for remark in result.remarks:
        yield f"! {remark}"


def _repetitions(result: Result) -> str:
    kept = [attempt for attempt in result.attempts if attempt["kept"]]
    foreign = [attempt["foreign_cores"] for attempt in kept if attempt["foreign_cores"] is not None]
    own = [attempt["own_cores"] for attempt in kept if attempt["own_cores"] is not None]
    text = f"{len(kept)} kept of {len(result.attempts)}"
    if own:
        text += f"; own CPU {min(own):.2f} to {max(own):.2f} cores"
    return text + (f"; foreign CPU {min(foreign):.2f} to {max(foreign):.2f} cores" if foreign else "; foreign CPU not known")


def _spreads(spreads: Mapping[str, Spread]) -> Iterator[str]:
    if spreads:
        width = max(20, *(len(_name(name)) for name in spreads))
        yield f"{'per repetition':<{width}}" + _row("min", "median", "max")
        for name, one in spreads.items():
            yield f"{_name(name):<{width}}" + _row(one.min, one.median, one.max)
        yield ""


def _percentiles(title: str, kinds: Mapping[str, Percentiles]) -> Iterator[str]:
    if kinds:
        yield f"{title:<20}" + _row("mean", "p50", "p90", "p99", "max", "samples")
        for name, one in kinds.items():
            yield f"{_name(name, ', ms'):<20}" + _row(*(1e3 * value for value in (one.mean, one.p50, one.p90, one.p99, one.max)), str(one.num_samples))
        yield ""


def _section(title: str, rows: Sequence[Row]) -> Iterator[str]:
    """Columns as wide as what stands in them; texts to the left, numbers to the right."""
    if rows:
        names = list(rows[0])
        cells = [[name.replace("_", " ") for name in names], *([_cell(row[name]) for name in names] for row in rows)]
        widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
        left = [isinstance(rows[0][name], str) for name in names]
        yield title
        for line in cells:
            yield "  ".join(f"{cell:<{width}}" if text else f"{cell:>{width}}" for cell, width, text in zip(line, widths, left, strict=True)).rstrip()
        yield ""


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:,}" if isinstance(value, int) else _number(value) if isinstance(value, float) else str(value)


def _name(name: str, unit: str = "") -> str:
    return _NAMES.get(name, name.replace("_", " ") + unit)


def _row(*cells: float | str) -> str:
    return "".join(f"{cell if isinstance(cell, str) else _number(cell):>11}" for cell in cells)


def _number(value: float) -> str:
    if value == 0 or value >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _joined(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())

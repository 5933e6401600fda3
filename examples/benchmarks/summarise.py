"""The table of a file of rows, as Markdown: for each workload, medians with the least and the greatest, best first.

python summarise.py results.jsonl --max-foreign 0.3
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

Row = Mapping[str, Any]
Who = tuple[str, str, str]
"""Engine, precision, settings."""

_SETTINGS = ("threads", "slots", "batch", "attn", "mode", "max_batch_tokens", "args")
"""Keys of a row that tell settings of one engine apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One figure. `best`: what the best is, for the ratio beside it."""

    title: str
    key: str
    form: str
    largest_is_best: bool


_SPEED = Column(title="output tok/s", key="out_tps", form=".1f", largest_is_best=True)
_TOTAL = Column(title="seconds", key="sec", form=".2f", largest_is_best=False)
_TTFT = Column(title="mean TTFT s", key="ttft_mean", form=".3f", largest_is_best=False)
_DECODE = Column(title="decode tok/s", key="decode_tps", form=".1f", largest_is_best=True)
COLUMNS: Mapping[str, Sequence[Column]] = {
    "W1": (_DECODE, _TTFT),
    "W2": (_SPEED, _TOTAL, _TTFT),
    "W3": (_TOTAL, _TTFT, Column(title="max TTFT s", key="ttft_max", form=".3f", largest_is_best=False), _SPEED),
}
"""The first decides who is best."""


def read(path: Path) -> list[Row]:
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
                if missing := [key for key in ("engine", "precision", "workload", "rep", "sec") if key not in row]:
                    raise ValueError(f"has no {', '.join(missing)}")
            except (ValueError, TypeError) as error:
                raise SystemExit(f"{path}: line {number}: {error}. Expected the rows of a driver, one JSON object a line.") from None
            found.append(row)
    return found


def who(row: Row) -> Who:
    settings = " ".join(str(row[key]) if key == "args" else f"{key}={row[key]}" for key in _SETTINGS if row.get(key))
    return row["engine"], row["precision"], settings


def table(workload: str, rows: Sequence[Row]) -> Iterator[str]:
    columns = [column for column in COLUMNS.get(workload, (_SPEED, _TOTAL, _TTFT)) if all(column.key in row for row in rows)] or [_TOTAL]
    groups: dict[Who, list[Row]] = defaultdict(list)
    for row in rows:
        groups[who(row)].append(row)
    first = columns[0]
    middles = {name: median(row[first.key] for row in group) for name, group in groups.items()}
    best = max(middles.values()) if first.largest_is_best else min(middles.values())
    yield f"**{workload}**\n"
    yield "| engine | precision | settings | reps | " + " | ".join(column.title for column in columns) + " | of the best | foreign cores |"
    yield "|" + "---|" * (6 + len(columns))
    for name in sorted(groups, key=lambda name: middles[name], reverse=first.largest_is_best):
        group = groups[name]
        share = middles[name] / best if first.largest_is_best else best / middles[name]
        cells = [*name, str(len(group)), *(_spread(group, column) for column in columns), f"{share:.2f}", _foreign(group)]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _spread(rows: Sequence[Row], column: Column) -> str:
    values = sorted(row[column.key] for row in rows)
    middle = f"{median(values):{column.form}}"
    return middle if len(values) == 1 else f"{middle} [{values[0]:{column.form}} - {values[-1]:{column.form}}]"


def _foreign(rows: Sequence[Row]) -> str:
    known = [row["foreign"] for row in rows if row.get("foreign") is not None]
    return f"{max(known):.2f}" if known else "not known"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path, nargs="?", default=Path("results.jsonl"))
    parser.add_argument("--max-foreign", type=float, default=0.3, help="rows with more cores of other processes are left out and counted (default: 0.3)")
    options = parser.parse_args()
    try:
        rows = read(options.results)
    except OSError as error:
        raise SystemExit(f"{options.results}: cannot be read ({error.strerror}). A driver writes it.") from None
    kept = [row for row in rows if (row.get("foreign") or 0.0) <= options.max_foreign]
    for workload in sorted({row["workload"] for row in kept}):
        print("\n".join(table(workload, [row for row in kept if row["workload"] == workload])))
    if len(kept) < len(rows):
        print(f"{len(rows) - len(kept)} of {len(rows)} rows left out: other processes used more than {options.max_foreign:g} cores.", file=sys.stderr)


if __name__ == "__main__":
    main()

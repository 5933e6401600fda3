"""Lines of trace files, JSON or CSV, checked one by one. Knows the two notations; nothing of what a line means."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import BenchUsage

T = TypeVar("T")

MAX_REQUESTS = 5_000_000
MAX_BYTES = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """A file, what messages call it, and what they say was expected."""

    path: Path
    kind: str
    expected: str

    def fault(self, says: str) -> BenchUsage:
        return BenchUsage(f"{self.kind} {self.path}: {says}")

    def unexpected(self, says: str) -> BenchUsage:
        return self.fault(f"{says}. {self.expected}")

    def is_json(self) -> bool:
        """By its first character: a line of JSON begins with a brace, the head of a CSV file does not."""
        try:
            with self.path.open("rb") as file:
                return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
        except OSError as error:
            raise self.fault(f"cannot be read: {error.strerror}.") from None

    def json_lines(self, line_type: type[T]) -> Iterator[tuple[int, T]]:
        """(number of the line, what stands there); empty lines are passed over."""
        try:
            if self.path.stat().st_size > MAX_BYTES:
                raise self.fault(f"is larger than {MAX_BYTES} bytes. Replay a part of it.")
            lines = self.path.read_bytes().splitlines()
        except OSError as error:
            raise self.fault(f"cannot be read: {error.strerror}.") from None
        if len(lines) > MAX_REQUESTS:
            raise self.fault(f"has {len(lines)} lines, the limit is {MAX_REQUESTS}. Replay a part of it.")
        decoder = msgspec.json.Decoder(line_type)
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    found = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise self.unexpected(f"line {number}: {error}") from None
                yield number, found

    def csv_rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str | None]]]:
        """(number of the line, its row); the head must name the columns."""
        try:
            with self.path.open(newline="", encoding="utf-8-sig") as file:
                rows = csv.DictReader(file)
                if missing := [name for name in columns if name not in (rows.fieldnames or ())]:
                    raise self.unexpected(f"the first line names no column {' and no column '.join(missing)}")
                for count, row in enumerate(rows, 1):
                    if count > MAX_REQUESTS:
                        raise self.fault(f"has more than {MAX_REQUESTS} lines. Replay a part of it.")
                    yield rows.line_num, row
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise self.unexpected(f"cannot be read: {error}") from None

"""Lengths of prompts and answers, in the format of Azure's public traces or made up. Knows no text and no pool.

The file: CSV with a head, and columns `ContextTokens` and `GeneratedTokens`; others are ignored.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from math import log
from pathlib import Path
from random import Random

from .errors import BenchUsage

COLUMNS = ("ContextTokens", "GeneratedTokens")
LONGEST = (1 << 16) - 1
"""Tokens of prompt and answer together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """(prompt, answer) of each request, in order; both at least 1."""

    name: str
    pairs: tuple[tuple[int, int], ...]

    @property
    def longest(self) -> int:
        return max(prompt + answer for prompt, answer in self.pairs)


def read_lengths(path: Path, most: int) -> Lengths:
    """The first `most` requests. One without a prompt or an answer is left out: it holds no blocks."""
    pairs: list[tuple[int, int]] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
                raise BenchUsage(f"lengths {path}: the first line names no column {' and no column '.join(missing)}. {_EXPECTED}")
            for row in rows:
                prompt, answer = (_length(path, rows.line_num, name, row[name]) for name in COLUMNS)
                if prompt + answer > LONGEST:
                    raise BenchUsage(f"lengths {path}: line {rows.line_num}: has {prompt} + {answer} tokens, the limit is {LONGEST}.")
                if prompt and answer:
                    pairs.append((prompt, answer))
                if len(pairs) == most:
                    break
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BenchUsage(f"lengths {path}: cannot be read: {error}. {_EXPECTED}") from None
    if not pairs:
        raise BenchUsage(f"lengths {path}: has no request with a prompt and an answer. {_EXPECTED}")
    return Lengths(name=path.name, pairs=tuple(pairs))


_EXPECTED = "Expected lines of TIMESTAMP,ContextTokens,GeneratedTokens."


def _length(path: Path, line: int, name: str, text: str | None) -> int:
    if text is None or not text.strip().isdecimal() or len(text) > 12:
        raise BenchUsage(f"lengths {path}: line {line}: {name} must be a number of tokens, got {text!r:.40}. {_EXPECTED}")
    return int(text)


def log_normal(count: int, seed: int) -> Lengths:
    """Prompts with median 1,020 and 99th percentile 4,100, answers with 129 and 600: about what is seen of chats (Azure, 2023)."""
    random = Random(f"lengths {seed}")

    def draw(median: float, p99: float, most: int) -> int:
        return max(1, min(most, round(random.lognormvariate(log(median), log(p99 / median) / 2.326))))

    pairs = tuple((draw(1020, 4100, 14_000), draw(129, 600, 1_000)) for _ in range(count))
    return Lengths(name=f"built in, log-normal, seed {seed}", pairs=pairs)

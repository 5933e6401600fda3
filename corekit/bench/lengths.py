"""Lengths of prompts and answers, in the format of Azure's public traces or made up. Knows no text and no pool.

The file: CSV with a head, and columns `ContextTokens` and `GeneratedTokens`; others are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path
from random import Random

from .trace_files import TraceFile

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
    file = TraceFile(path=path, kind="lengths", expected="Expected lines of TIMESTAMP,ContextTokens,GeneratedTokens.")
    pairs: list[tuple[int, int]] = []
    for line, row in file.csv_rows(COLUMNS):
        prompt, answer = lengths_of(file, line, row)
        if prompt + answer > LONGEST:
            raise file.fault(f"line {line}: has {prompt} + {answer} tokens, the limit is {LONGEST}.")
        if prompt and answer:
            pairs.append((prompt, answer))
        if len(pairs) == most:
            break
    if not pairs:
        raise file.unexpected("has no request with a prompt and an answer")
    return Lengths(name=path.name, pairs=tuple(pairs))


def lengths_of(file: TraceFile, line: int, row: Mapping[str, str | None]) -> tuple[int, int]:
    """Tokens of prompt and answer."""
    found = []
    for name in COLUMNS:
        text = row[name]
        if text is None or not text.strip().isdecimal() or len(text) > 12:
            raise file.unexpected(f"line {line}: {name} must be a number of tokens, got {text!r:.40}")
        found.append(int(text))
    prompt, answer = found
    return prompt, answer


def log_normal(count: int, seed: int) -> Lengths:
    """Prompts with median 1,020 and 99th percentile 4,100, answers with 129 and 600: about what is seen of chats (Azure, 2023)."""
    random = Random(f"lengths {seed}")

    def draw(median: float, p99: float, most: int) -> int:
        return max(1, min(most, round(random.lognormvariate(log(median), log(p99 / median) / 2.326))))

    pairs = tuple((draw(1020, 4100, 14_000), draw(129, 600, 1_000)) for _ in range(count))
    return Lengths(name=f"built in, log-normal, seed {seed}", pairs=pairs)

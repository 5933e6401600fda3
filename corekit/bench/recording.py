"""What a service was asked, as recorded: when each request came, how long prompt and answer were, which blocks it shared. Knows no text.

Two notations. JSONL as Mooncake's traces, times in milliseconds: `{"timestamp": 0, "input_length": 6758, "output_length": 500,
"hash_ids": [0, 1]}`, hash_ids or not. CSV as Azure's: `TIMESTAMP,ContextTokens,GeneratedTokens`, times in ISO 8601 or in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from .arrivals import mean_rate
from .errors import BenchUsage
from .lengths import COLUMNS, lengths_of
from .trace_files import TraceFile

MAX_TOKENS = 10_000_000
"""Of a prompt, and of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One request. Its first blocks are those that others with the same ids have too."""

    time: float
    """Seconds."""
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Requests in the order of their times; the first came at 0."""

    name: str
    requests: tuple[Recorded, ...]
    block_tokens: int
    """Tokens of a block of `block_ids`."""

    @property
    def times(self) -> tuple[float, ...]:
        return tuple(request.time for request in self.requests)

    def faster(self, factor: float) -> Recording:
        return replace(self, requests=tuple(replace(request, time=request.time / factor) for request in self.requests))

    def at_rate(self, rate: float) -> Recording:
        """So that `rate` requests come per second on average."""
        recorded = mean_rate(self.times)
        if recorded is None:
            raise BenchUsage(f"--arrivals {self.name}: its {len(self.requests)} requests came at one moment, which no --rate stretches. Take more of them.")
        return self.faster(rate / recorded)

    def shorter(self, divisor: int) -> Recording:
        """Prompts, answers and blocks of a fraction of their tokens, at least one: what is shared remains shared."""

        def cut(length: int) -> int:
            return max(1, round(length / divisor))

        requests = (replace(one, num_prompt_tokens=cut(one.num_prompt_tokens), num_output_tokens=cut(one.num_output_tokens)) for one in self.requests)
        return replace(self, requests=tuple(requests), block_tokens=cut(self.block_tokens))

    def clipped(self, longest: int) -> tuple[Recording, int]:
        """No request is longer than `longest` tokens, prompt and answer together; and how many were. A prompt loses its end before an answer does."""
        num_clipped = sum(one.num_prompt_tokens + one.num_output_tokens > longest for one in self.requests)

        def clip(one: Recorded) -> Recorded:
            out = min(one.num_output_tokens, longest - 1)
            return replace(one, num_prompt_tokens=min(one.num_prompt_tokens, longest - out), num_output_tokens=out)

        return replace(self, requests=tuple(map(clip, self.requests))), num_clipped


def read_recording(path: Path, most: int, block_tokens: int) -> Recording:
    """The first `most` requests by time. One without a prompt or an answer is left out: nothing could be asked."""
    file = TraceFile(path=path, kind="arrivals", expected=_EXPECTED)
    found = _from_json(file, block_tokens) if file.is_json() else _from_csv(file)
    requests = sorted((one for one in found if one.num_prompt_tokens and one.num_output_tokens), key=lambda one: one.time)[:most]
    if not requests:
        raise file.unexpected("has no request with a prompt and an answer")
    first = requests[0].time
    return Recording(name=path.name, requests=tuple(replace(one, time=one.time - first) for one in requests), block_tokens=block_tokens)


_EXPECTED = (
    'Expected lines of {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}, '
    "or CSV with TIMESTAMP,ContextTokens,GeneratedTokens in its first line."
)


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def _from_json(file: TraceFile, block_tokens: int) -> Iterator[Recorded]:
    for number, line in file.json_lines(_Line):
        _check(file, number, line.timestamp, line.input_length, line.output_length)
        full, partial = divmod(line.input_length, block_tokens)
        if line.hash_ids and len(line.hash_ids) not in (full, full + bool(partial)):
            raise file.fault(
                f"line {number}: has {len(line.hash_ids)} hash_ids for {line.input_length} tokens, which is no number of blocks of {block_tokens} tokens. "
                "--block-tokens says how many a block has."
            )
        yield Recorded(time=line.timestamp / 1e3, num_prompt_tokens=line.input_length, num_output_tokens=line.output_length, block_ids=line.hash_ids)


def _from_csv(file: TraceFile) -> Iterator[Recorded]:
    for line, row in file.csv_rows(("TIMESTAMP", *COLUMNS)):
        time = _seconds(file, line, row)
        prompt, answer = lengths_of(file, line, row)
        _check(file, line, time, prompt, answer)
        yield Recorded(time=time, num_prompt_tokens=prompt, num_output_tokens=answer)


def _seconds(file: TraceFile, line: int, row: Mapping[str, str | None]) -> float:
    text = (row["TIMESTAMP"] or "").strip()
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise file.unexpected(f"line {line}: TIMESTAMP must be a time in ISO 8601 or in seconds, got {text!r:.40}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _check(file: TraceFile, line: int, time: float, *lengths: int) -> None:
    if not math.isfinite(time):
        raise file.unexpected(f"line {line}: the time must be finite, got {time}")
    for length in lengths:
        if not 0 <= length <= MAX_TOKENS:
            raise file.unexpected(f"line {line}: a length must be a number of tokens from 0 to {MAX_TOKENS}, got {length}")

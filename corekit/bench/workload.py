"""What a benchmark asks: named workloads of repetitions of requests, read from JSON. Knows neither engine nor server.

The file: `{"W2": {"reps": [[{"ids": [..], "text": "..", "out": 64}, ..], ..]}, ..}`. A request has `ids`, `text` or both, and
`out`, the exact number of tokens to generate. Other keys beside `reps` are for people.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import BenchUsage

MAX_OUT = 1_000_000
MAX_IDS = 10_000_000
MAX_ID = 2**31 - 1
MAX_BYTES = 1 << 30

_CONCURRENCY: Mapping[str, int] = {"W1": 1, "W3": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt, as ids, as text, or as both, and how many tokens its answer has."""

    token_ids: tuple[int, ...] | None
    text: str | None
    num_output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Repetitions of the same shape with different prompts, so that none is served from what another left in a prefix cache."""

    name: str
    origin: str
    """The file, or how it was made."""
    repetitions: tuple[tuple[Request, ...], ...]

    @property
    def num_requests(self) -> int:
        """Of a repetition."""
        return len(self.repetitions[0])

    @property
    def concurrency(self) -> int:
        """Requests in flight that this workload is meant for: one (W1), eight (W3), or all at once."""
        return min(_CONCURRENCY.get(self.name, self.num_requests), self.num_requests)

    def repetition(self, number: int) -> tuple[Request, ...]:
        """Requests of repetition `number`; beyond those at hand, old ones that begin with another token."""
        count = len(self.repetitions)
        if number < count:
            return self.repetitions[number]
        kept = range(1, count) if count > 1 else range(1)  # repetition 0 is for warming up
        old = self.repetitions[kept[(number - count) % len(kept)]]
        return tuple(_freshened(request, number, self._ids()) for request in old)

    def _ids(self) -> list[int]:
        return sorted({i for request in self.repetitions[0] for i in request.token_ids or ()})


def _freshened(request: Request, number: int, ids: list[int]) -> Request:
    """The same request with another beginning: blocks are keyed by all that precedes them, so no cached block fits. Lengths of ids stay."""
    token_ids = request.token_ids
    if token_ids and len(ids) > 1:
        first = ids[number % len(ids)]
        first = first if first != token_ids[0] else ids[(number + 1) % len(ids)]
        token_ids = (first, *token_ids[1:])
    text = None if request.text is None else f"{number}: {request.text}"
    return Request(token_ids=token_ids, text=text, num_output_tokens=request.num_output_tokens)


def load(path: Path, name: str | None, default: str = "") -> Workload:
    """name None: the only workload of the file, else `default`. Raises BenchUsage with the place in the file, the fault and the limit."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BenchUsage(f"workload {path}: has {path.stat().st_size} bytes; at most {MAX_BYTES} are read. Is it a workload file?")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise BenchUsage(f"workload {path}: cannot be read ({error.strerror}). Check the path given with --workload.") from None
    except ValueError as error:
        raise BenchUsage(f"workload {path}: is not JSON ({error}). {_EXPECTED}") from None
    if not isinstance(content, dict):
        raise _fault(path, "the file", "an object of workloads", content)
    names = [key for key, value in content.items() if isinstance(value, dict) and "reps" in value]
    if name is None:
        name = names[0] if len(names) == 1 else default
    if name not in content:
        raise BenchUsage(f"workload {path}: has no workload {name!r}. It has: {', '.join(names) or 'none'}. Choose one with --name.")
    return Workload(name=name, origin=str(path), repetitions=tuple(_repetitions(path, name, content[name])))


def prompts_as(workload: Workload, kind: str | None) -> Workload:
    """Only ids, or only text; None: as they are (ids where a request has both). Raises BenchUsage where there is none of that kind."""
    if kind is None:
        return workload
    repetitions = []
    for r, repetition in enumerate(workload.repetitions):
        for i, request in enumerate(repetition):
            if (request.token_ids if kind == "ids" else request.text) is None:
                raise BenchUsage(f"workload {workload.origin}: {workload.name}.reps[{r}][{i}]: has no '{kind}', which --prompts {kind} asks for.")
        repetitions.append(tuple(replace(request, text=None) if kind == "ids" else replace(request, token_ids=None) for request in repetition))
    return replace(workload, repetitions=tuple(repetitions))


_EXPECTED = 'Expected {"NAME": {"reps": [[{"ids": [..] or "text": "..", "out": N}, ..], ..]}}.'


def _repetitions(path: Path, name: str, entry: object) -> Iterator[tuple[Request, ...]]:
    if not isinstance(entry, dict):
        raise _fault(path, name, "an object with the key 'reps'", entry)
    reps = entry.get("reps")
    if not isinstance(reps, list) or not reps:
        raise _fault(path, f"{name}.reps", "a list of at least one repetition", reps)
    for r, rep in enumerate(reps):
        if not isinstance(rep, list) or not rep:
            raise _fault(path, f"{name}.reps[{r}]", "a list of at least one request", rep)
        yield tuple(_request(path, f"{name}.reps[{r}][{i}]", one) for i, one in enumerate(rep))


def _request(path: Path, place: str, entry: object) -> Request:
    if not isinstance(entry, Mapping):
        raise _fault(path, place, "an object with 'out' and 'ids' or 'text'", entry)
    ids, text, out = entry.get("ids"), entry.get("text"), entry.get("out")
    if ids is None and text is None:
        raise BenchUsage(f"workload {path}: {place}: has neither 'ids' nor 'text', so there is no prompt. {_EXPECTED}")
    if type(out) is not int or not 1 <= out <= MAX_OUT:
        raise _fault(path, f"{place}.out", f"an integer from 1 to {MAX_OUT}", out)
    if text is not None and (not isinstance(text, str) or not text):
        raise _fault(path, f"{place}.text", "a string that is not empty", text)
    if ids is not None:
        if not isinstance(ids, list) or not 1 <= len(ids) <= MAX_IDS:
            raise _fault(path, f"{place}.ids", f"a list of 1 to {MAX_IDS} token ids", ids)
        for at, value in enumerate(ids):
            if type(value) is not int or not 0 <= value <= MAX_ID:
                raise _fault(path, f"{place}.ids[{at}]", f"an integer from 0 to {MAX_ID}", value)
    return Request(token_ids=None if ids is None else tuple(ids), text=text, num_output_tokens=out)


def _fault(path: Path, place: str, limit: str, value: object) -> BenchUsage:
    shown = "nothing" if value is None else repr(value)
    return BenchUsage(f"workload {path}: {place}: must be {limit}, got {shown if len(shown) <= 60 else shown[:57] + '...'}. {_EXPECTED}")

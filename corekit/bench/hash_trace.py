"""Traces of requests as chains of block ids, in Mooncake's JSONL format or made up. Knows no tokens and no pool.

A line is one request: `{"hash_ids": [0, 1, 2], ..}`. An id stands for a full block and all that precedes it, so equal prefixes have
equal ids. Other keys are ignored.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec

from corekit.api import BlockKey

from .errors import BenchUsage
from .trace_files import TraceFile

MAX_CHAIN = 1_000_000


class _Line(msgspec.Struct):
    hash_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HashTrace:
    """Requests in order, each a chain of indices into `keys`. A block is what it is with its parent, so a prefix of a chain is a chain."""

    name: str
    chains: Sequence[Sequence[int]]
    keys: Sequence[BlockKey] = field(repr=False)

    @property
    def num_blocks(self) -> int:
        return sum(map(len, self.chains))

    @property
    def longest(self) -> int:
        return max(map(len, self.chains))


def hash_trace(name: str, requests: Iterable[Sequence[int]]) -> HashTrace:
    """Interns ids by their parent. Raises BenchUsage where there is no block at all."""
    index: dict[tuple[int, int], int] = {}
    keys: list[BlockKey] = []
    chains: list[list[int]] = []
    for ids in requests:
        parent, chain = -1, []
        for one in ids:
            at = index.get((parent, one))
            if at is None:
                at = index[parent, one] = len(keys)
                keys.append(BlockKey(hash=at.to_bytes(16, "little"), parent=keys[parent] if parent >= 0 else None, tokens=(one,)))
            chain.append(at)
            parent = at
        chains.append(chain)
    if not keys:
        raise BenchUsage(f"trace {name}: has no block in any request, so there is nothing to replay. {_EXPECTED}")
    return HashTrace(name=name, chains=chains, keys=keys)


def read_hash_trace(path: Path) -> HashTrace:
    file = TraceFile(path=path, kind="trace", expected=_EXPECTED)
    return hash_trace(path.name, [_chain(file, number, line.hash_ids) for number, line in file.json_lines(_Line)])


_EXPECTED = 'Expected one request a line: {"hash_ids": [0, 1, ..], ..}.'


def _chain(file: TraceFile, number: int, ids: list[int]) -> list[int]:
    if len(ids) > MAX_CHAIN:
        raise file.fault(f"line {number}: has {len(ids)} blocks, the limit is {MAX_CHAIN}.")
    return ids


def conversations(*, num_conversations: int, seed: int) -> HashTrace:
    """Conversations of several turns that share a few system prompts; turns of different conversations interleave.

    A turn sends everything that was said before it: 1 to 6 new blocks of a question, after 1 to 4 of the last answer. Thinking
    takes exponential time, conversations begin at random, and a third of all turns is the last of its conversation.
    """
    random = Random(f"conversations {seed}")
    fresh = iter(range(10**9))
    systems = [[next(fresh) for _ in range(random.randint(2, 12))] for _ in range(8)]
    due: list[tuple[float, int, list[int]]] = []
    for number in range(num_conversations):
        system = systems[min(int(random.expovariate(0.5)), len(systems) - 1)]
        due.append((random.uniform(0.0, num_conversations), number, list(system)))
    heapq.heapify(due)
    requests = []
    while due:
        now, number, said = heapq.heappop(due)
        said = [*said, *(next(fresh) for _ in range(random.randint(1, 6)))]
        requests.append(said)
        if random.random() < 2 / 3:
            answer = [next(fresh) for _ in range(random.randint(1, 4))]
            heapq.heappush(due, (now + random.expovariate(1 / 60.0), number, [*said, *answer]))
    return hash_trace(f"built in, {num_conversations} conversations, seed {seed}", requests)

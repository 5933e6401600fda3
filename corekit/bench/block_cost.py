"""Part `cost` of `bench memory`: nanoseconds per block of what an allocator stack does, in a small pool and in a large one. No engine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from time import perf_counter_ns
from typing import TypeVar

from corekit.api import BlockAllocator, BlockKey, Blocks, PrefixQuery, SupportsPrefixCache

from .errors import BenchError
from .found import Found, alone
from .machine import CpuMeter
from .measure import measure
from .progress import Progress
from .result import Row
from .stacks import Stacks, names
from .statistics import percentiles

A = TypeVar("A")
T = TypeVar("T")
Samples = dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSizes:
    pools: tuple[int, int] = (1_000, 100_000)
    chain: int = 32
    """Blocks of one request."""
    calls: int = 16
    """Requests of one round; a round gives one sample of each operation."""
    rounds: int = 200


class Turnover:
    """A full pool in which every round finds some chains and puts new ones in place of the oldest.

    Invariant between rounds: every block is idle with a key, or free where the stack caches nothing; `_chains` are those that were
    given back, oldest first.
    """

    def __init__(self, stack: BlockAllocator, num_blocks: int, sizes: CostSizes) -> None:
        self._stack = stack
        self._sizes = sizes
        self._random = Random(num_blocks)
        self._caches = isinstance(stack, SupportsPrefixCache) and stack.prefix_cache
        self._num_keys = 0
        self._chains: list[list[BlockKey]] = []
        for _ in range(num_blocks // sizes.chain):
            keys = self._fresh()
            taken = self._take()
            self._publish(taken, keys)
            stack.give(taken)
            self._chains.append(keys)

    def round(self) -> dict[str, float]:
        """Nanoseconds per block of each operation, over all calls of the round."""
        stack, calls = self._stack, self._sizes.calls
        recent = self._chains[len(self._chains) // 2 :]
        queries = [PrefixQuery(keys) for keys in self._random.sample(recent, min(calls, len(recent)))]
        costs: dict[str, float] = {}
        if self._caches:
            costs["find"], found = self._timed(stack.find, queries)
            if any(len(match.blocks) != self._sizes.chain for match in found):
                raise BenchError("a chain that was given back in a pool that holds it was not found whole: what was timed is no hit")
        costs["take"], taken = self._timed(lambda number: self._take(), range(calls))
        fresh = [self._fresh() for _ in taken]
        if self._caches:
            costs["publish"], _ = self._timed(lambda pair: self._publish(*pair), list(zip(taken, fresh, strict=True)))
        costs["give"], _ = self._timed(stack.give, taken)
        self._chains = self._chains[calls:] + fresh
        return costs

    def _timed(self, call: Callable[[A], T], asked: Sequence[A]) -> tuple[float, list[T]]:
        """Nanoseconds per block of a call for each of asked, and what they gave."""
        began = perf_counter_ns()
        given = [call(one) for one in asked]
        return (perf_counter_ns() - began) / (len(asked) * self._sizes.chain), given

    def _take(self) -> Blocks:
        taken = self._stack.take(self._sizes.chain)
        if taken is None:
            raise BenchError(f"take({self._sizes.chain}) is None although {self._stack.available} blocks are available")
        return taken

    def _publish(self, taken: Blocks, keys: Sequence[BlockKey]) -> None:
        for block, key in zip(taken.ids, keys, strict=True):
            self._stack.publish(block, key)

    def _fresh(self) -> list[BlockKey]:
        keys: list[BlockKey] = []
        for _ in range(self._sizes.chain):
            number = self._num_keys
            self._num_keys += 1
            keys.append(BlockKey(hash=number.to_bytes(16, "little"), parent=keys[-1] if keys else None, tokens=(number,)))
        return keys


async def block_cost(stacks: Stacks, sizes: CostSizes, progress: Progress, max_foreign: float) -> Found:
    """The configured stack at both sizes, in turn round by round, so that what disturbs one disturbs the other."""

    async def run(number: int, label: str) -> list[Samples]:
        return _samples(stacks, sizes, progress)

    attempts = await measure(run, alone(max_foreign), CpuMeter)
    small, large = attempts[0].value
    rows: list[Row] = []
    for name in small:
        few, many = percentiles(small[name]), percentiles(large[name])
        row: dict[str, object] = {"operation": "take (evicting)" if name == "take" and "find" in small else name}
        for size, one in zip(sizes.pools, (few, many), strict=True):
            row |= {f"{size:,}_blocks,_ns": one.p50, f"{size:,}_p90": one.p90}
        rows.append({**row, "ratio": many.p50 / few.p50})
    return Found(sections={f"cost per block, {names(stacks.device)}": rows}, attempts=attempts)


def _samples(stacks: Stacks, sizes: CostSizes, progress: Progress) -> list[Samples]:
    turnovers = [Turnover(stacks.build(stacks.device, size)[0], size, sizes) for size in sizes.pools]
    samples: list[Samples] = [{}, {}]
    progress.begin("cost", sizes.rounds, "rounds")
    with _no_collections():
        for number in range(sizes.rounds + 1):
            for turnover, kept in zip(turnovers, samples, strict=True):
                for name, cost in turnover.round().items():
                    if number:  # the first warms up
                        kept.setdefault(name, []).append(cost)
            progress.advance()
    return samples


@contextmanager
def _no_collections() -> Iterator[None]:
    """As in an engine, which collects while it is idle only."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()

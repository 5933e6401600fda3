"""Part `replay` of `bench prefix`: traces of block ids through the configured allocator layers, beside the clairvoyant optimum. No model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corekit.api import BlockAllocator, Blocks, PrefixQuery

from .belady import most_hits
from .errors import BenchError
from .found import Found, alone
from .hash_trace import HashTrace
from .machine import CpuMeter
from .measure import measure
from .progress import Progress
from .result import Row
from .stacks import Stacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Blocks that were found, and of those the ones that came from the host."""

    num_hits: int
    num_host_hits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Sizes to replay with: in percent of a trace's distinct blocks, and the host's pool as a multiple of the device's."""

    percents: Sequence[float]
    host: float

    def blocks(self, trace: HashTrace, percent: float) -> int:
        """At least what the longest request needs: it is in service whole."""
        return max(trace.longest, math.ceil(len(trace.keys) * percent / 100.0))


class Replay:
    """Every request of every trace once for each size of the pool, first with a pool that never evicts."""

    def __init__(self, stacks: Stacks, traces: Sequence[HashTrace], pools: Pools, progress: Progress) -> None:
        self._stacks = stacks
        self._traces = traces
        self._pools = pools
        self._progress = progress

    async def run(self, max_foreign: float) -> Found:
        async def replayed(number: int, label: str) -> dict[str, list[Row]]:
            return {f"replay of {trace.name}": list(self._rows(trace)) for trace in self._traces}

        attempts = await measure(replayed, alone(max_foreign), CpuMeter)
        return Found(sections=attempts[0].value, attempts=attempts)

    def _rows(self, trace: HashTrace) -> Iterator[Row]:
        yield self._row(trace, "unlimited", len(trace.keys), 0)
        for percent in self._pools.percents:
            size = self._pools.blocks(trace, percent)
            yield self._row(trace, f"{percent:g} %", size, round(size * self._pools.host))

    def _row(self, trace: HashTrace, pool: str, num_blocks: int, num_host_blocks: int) -> Row:
        num_all, layers = trace.num_blocks, self._stacks.device
        alone = self._replay(trace, f"{trace.name}, {pool}", *self._stacks.build(layers, num_blocks)[:1])
        row: dict[str, object] = {
            "pool": pool,
            "requests": len(trace.chains),
            "blocks": num_blocks,
            "hit_ratio": alone.num_hits / num_all,
            "optimum": most_hits(trace.chains, num_blocks) / num_all,
            "host_blocks": num_host_blocks or None,
            "hit_ratio_with_host": None,
            "of_that_host": None,
            "optimum_of_both": None,
            "to_host": None,
            "to_device": None,
        }
        if num_host_blocks:
            stack, copies = self._stacks.build(self._stacks.over_host(layers, num_host_blocks), num_blocks)
            both = self._replay(trace, f"{trace.name}, {pool} and the host", stack)
            row |= {
                "hit_ratio_with_host": both.num_hits / num_all,
                "of_that_host": both.num_host_hits / num_all,
                "optimum_of_both": most_hits(trace.chains, num_blocks + num_host_blocks) / num_all,
                "to_host": copies.num_to_host,
                "to_device": copies.num_to_device,
            }
        return row

    def _replay(self, trace: HashTrace, label: str, stack: BlockAllocator) -> Replayed:
        self._progress.begin(f"replay {label}", len(trace.chains), "requests")
        return replay(stack, trace, self._progress)


def replay(stack: BlockAllocator, trace: HashTrace, progress: Progress) -> Replayed:
    """Each request in turn: find its chain, hold what is there, take and publish the rest, give all of it back."""
    num_hits = num_host_hits = 0
    for number, chain in enumerate(trace.chains):
        progress.advance()
        keys = [trace.keys[at] for at in chain]
        match = stack.find(PrefixQuery(keys))
        found = len(match.blocks)
        held = stack.hold(match) if found else Blocks()
        rest = stack.take(len(keys) - found)
        if held is None or rest is None:
            raise BenchError(f"request {number} of trace {trace.name} needs {len(keys)} blocks, of which {found} were found, and the stack refused them")
        for block, key in zip(rest.ids, keys[found:], strict=True):
            stack.publish(block, key)
        stack.give(Blocks((*held.ids, *rest.ids)))
        num_hits += found
        num_host_hits += sum([cached.place.on_host for cached in match.blocks])
    return Replayed(num_hits=num_hits, num_host_hits=num_host_hits)

"""The bottom of the allocator stack: a list of free blocks. Keeps no content findable; knows nothing of requests."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import AllocatorStats, BlockKey, Blocks, PrefixMatch, PrefixQuery


class FreeList:
    """Every block 1..num_blocks is either here or used; block 0 is never handed out.

    Blocks that were given back are handed out first, last in first out; above `_next` lie those that never left.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"free-list: num_blocks is {num_blocks}, at least 1 is needed; give the pool more memory or fewer bytes per block")
        self._num_blocks = num_blocks
        self._given: list[int] = []
        self._next = 1

    @property
    def available(self) -> int:
        return len(self._given) + self._num_blocks + 1 - self._next

    def take(self, count: int) -> Blocks | None:
        if not 0 <= count <= self.available:
            return None
        reused = min(count, len(self._given))
        ids = self._given[len(self._given) - reused :]
        del self._given[len(self._given) - reused :]
        fresh = range(self._next, self._next + count - reused)
        self._next += len(fresh)
        return Blocks((*reversed(ids), *fresh))

    def give(self, blocks: Blocks) -> None:
        self._given.extend(blocks.ids)

    def find(self, query: PrefixQuery) -> PrefixMatch:
        return PrefixMatch()

    def hold(self, match: PrefixMatch) -> Blocks | None:
        return None if match.blocks else Blocks()

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return True

    def stats(self) -> AllocatorStats:
        return AllocatorStats(num_free=self.available)

    def audit(self) -> Sequence[str]:
        problems = []
        if len(set(self._given)) != len(self._given):
            problems.append("free-list: a block was given back twice")
        if strays := [block for block in self._given if not 1 <= block < self._next]:
            problems.append(f"free-list: blocks {strays[:8]} were given back but never taken")
        return problems

"""A layer that counts, as an author would write it: it delegates and keeps numbers of its own."""

from __future__ import annotations

from corekit.api import AllocatorStats, BlockAllocator, BlockKey, Blocks, PrefixMatch, PrefixQuery


class Counting:
    """Delegates everything; knows how many blocks were taken."""

    def __init__(self, inner: BlockAllocator) -> None:
        self.inner = inner
        self.num_taken = 0

    @property
    def prefix_cache(self) -> bool:
        return getattr(self.inner, "prefix_cache", False)

    @property
    def available(self) -> int:
        return self.inner.available

    def take(self, count: int) -> Blocks | None:
        taken = self.inner.take(count)
        if taken is not None:
            self.num_taken += count
        return taken

    def give(self, blocks: Blocks) -> None:
        self.inner.give(blocks)

    def find(self, query: PrefixQuery) -> PrefixMatch:
        return self.inner.find(query)

    def hold(self, match: PrefixMatch) -> Blocks | None:
        return self.inner.hold(match)

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return self.inner.publish(block, key, retain_until)

    def stats(self) -> AllocatorStats:
        return self.inner.stats()

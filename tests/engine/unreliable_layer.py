"""An allocator layer that refuses without cause: what the core's answers to a refusal are proved with."""

from __future__ import annotations

from corekit.api import AllocatorStats, BlockAllocator, BlockKey, Blocks, PrefixMatch, PrefixQuery


class Unreliable:
    """A layer that breaks its word now and then: `take` and `hold` refuse although `available` said yes."""

    def __init__(self, inner: BlockAllocator, chance) -> None:
        self.inner = inner
        self.chance = chance
        self.prefix_cache = getattr(inner, "prefix_cache", False)

    @property
    def available(self) -> int:
        return self.inner.available

    def take(self, count: int) -> Blocks | None:
        return None if self.chance() else self.inner.take(count)

    def hold(self, match: PrefixMatch) -> Blocks | None:
        return None if self.chance() else self.inner.hold(match)

    def give(self, blocks: Blocks) -> None:
        self.inner.give(blocks)

    def find(self, query: PrefixQuery) -> PrefixMatch:
        return self.inner.find(query)

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return self.inner.publish(block, key, retain_until)

    def stats(self) -> AllocatorStats:
        return self.inner.stats()

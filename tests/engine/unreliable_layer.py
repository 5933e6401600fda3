"""An allocator layer that refuses without cause: what the core's answers to a refusal are proved with."""

from __future__ import annotations

from corekit.api import AllocatorStats, BlockAllocator, BlockKey, Blocks, PrefixMatch, PrefixQuery, Ticket


class Unreliable:
    """A layer that breaks its word now and then: `take`, `hold` and the swap space refuse although there is room."""

    def __init__(self, inner: BlockAllocator, chance) -> None:
        self.inner = inner
        self.chance = chance
        self.prefix_cache = getattr(inner, "prefix_cache", False)
        self.num_host_blocks = getattr(inner, "num_host_blocks", 0)

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

    def swap_out(self, blocks: Blocks, keys) -> Ticket | None:
        return None if self.chance() else self.inner.swap_out(blocks, keys)

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        return None if self.chance() else self.inner.swap_in(ticket)

    def drop(self, ticket: Ticket) -> None:
        self.inner.drop(ticket)

    def stats(self) -> AllocatorStats:
        return self.inner.stats()

"""A small prefix cache over a free list: what the core's publish, find and hold are proved with."""

from __future__ import annotations

from collections import OrderedDict

from corekit.api import AllocatorStats, BlockAllocator, BlockKey, BlockRef, Blocks, CachedBlock, PrefixMatch, PrefixQuery


class PrefixLayer:
    """Released blocks with a key stay findable; the oldest goes first, children before their parents."""

    prefix_cache = True

    def __init__(self, inner: BlockAllocator) -> None:
        self.inner = inner
        self.block_of: dict[BlockKey, int] = {}
        self.key_of: dict[int, BlockKey] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        return self.inner.available + len(self.idle)

    def take(self, count: int) -> Blocks | None:
        if count > self.available:
            return None
        below = self.inner.take(min(count, self.inner.available))
        assert below is not None
        return Blocks(below.ids + tuple(self._evict() for _ in range(count - len(below.ids))))

    def _evict(self) -> int:
        block, _ = self.idle.popitem(last=False)
        del self.block_of[self.key_of.pop(block)]
        return block

    def give(self, blocks: Blocks) -> None:
        loose = []
        for block in reversed(blocks.ids):
            if block in self.key_of:
                self.idle[block] = None
            else:
                loose.append(block)
        if loose:
            self.inner.give(Blocks(tuple(loose)))

    def find(self, query: PrefixQuery) -> PrefixMatch:
        found = []
        for key in query.keys:
            block = self.block_of.get(key)
            if block is None:
                break
            found.append(CachedBlock(key, BlockRef(block)))
        return PrefixMatch(tuple(found), sum(b.place.block in self.idle for b in found))

    def hold(self, match: PrefixMatch) -> Blocks | None:
        if any(self.block_of.get(b.key) != b.place.block for b in match.blocks):
            return None
        for b in match.blocks:
            self.idle.pop(b.place.block, None)
        return Blocks(tuple(b.place.block for b in match.blocks))

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        if key in self.block_of:
            return self.block_of[key] == block
        assert block not in self.key_of, "a block has one key"
        self.block_of[key], self.key_of[block] = block, key
        return True

    def stats(self) -> AllocatorStats:
        below = self.inner.stats()
        return AllocatorStats(num_free=below.num_free, num_idle=len(self.idle))

    def audit(self) -> list[str]:
        sound = set(self.idle) == set(self.key_of) == set(self.block_of.values())
        return [] if sound else ["keys and idle blocks differ"]


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

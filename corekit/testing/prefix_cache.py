"""A plain prefix cache: what layers are built over, so that publish, find and hold go through them in a kit.

Right and simple; fast enough for tests. Owned by the kit of slot `block_allocator`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from corekit.api import AllocatorStats, BlockAllocator, BlockKey, BlockRef, Blocks, CachedBlock, PrefixMatch, PrefixQuery


class PlainPrefixCache:
    """Blocks that were given back with a key stay findable. The one given back longest ago goes first, a table's last before its first."""

    prefix_cache = True

    def __init__(self, inner: BlockAllocator) -> None:
        self.inner = inner
        self._block_of: dict[BlockKey, int] = {}
        self._key_of: dict[int, BlockKey] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._sink: Callable[[int, BlockKey], None] | None = None
        self._num_evicted = 0

    @property
    def available(self) -> int:
        return self.inner.available + len(self._idle)

    def take(self, count: int) -> Blocks | None:
        if count > self.available:
            return None
        below = self.inner.take(min(count, self.inner.available))
        assert below is not None, "the layer beneath refused what it says is available"
        return Blocks((*below.ids, *(self._evict() for _ in range(count - len(below.ids)))))

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        key = self._key_of.pop(block)
        if self._sink is not None:
            self._sink(block, key)
        del self._block_of[key]
        self._num_evicted += 1
        return block

    def give(self, blocks: Blocks) -> None:
        loose = []
        for block in reversed(blocks.ids):
            if block in self._key_of:
                self._idle[block] = None
            else:
                loose.append(block)
        if loose:
            self.inner.give(Blocks(tuple(reversed(loose))))

    def find(self, query: PrefixQuery) -> PrefixMatch:
        found = []
        for key in query.keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(CachedBlock(key, BlockRef(block)))
        return PrefixMatch(tuple(found), sum(cached.place.block in self._idle for cached in found))

    def hold(self, match: PrefixMatch) -> Blocks | None:
        if any(cached.place.on_host or self._block_of.get(cached.key) != cached.place.block for cached in match.blocks):
            return None
        for cached in match.blocks:
            self._idle.pop(cached.place.block, None)
        return Blocks(tuple(cached.place.block for cached in match.blocks))

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        if key in self._block_of:
            return self._block_of[key] == block
        assert block not in self._key_of, f"block {block} is published a second time, under another key: a full block has one"
        self._block_of[key], self._key_of[block] = block, key
        return True

    def stats(self) -> AllocatorStats:
        below = self.inner.stats()
        return AllocatorStats(
            num_free=below.num_free,
            num_idle=below.num_idle + len(self._idle),
            num_host_used=below.num_host_used,
            num_evicted=below.num_evicted + self._num_evicted,
        )

    def set_sink(self, sink: Callable[[int, BlockKey], None]) -> None:
        self._sink = sink

    def audit(self) -> Sequence[str]:
        sound = set(self._idle) == set(self._key_of) == set(self._block_of.values())
        return () if sound else ("prefix cache: keys and idle blocks differ",)

"""A plain prefix cache: what layers are built over, so that publish, find, hold and what is retained go through them in a kit.

Right and simple; fast enough for tests. Owned by the kit of slot `block_allocator`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

from corekit.api import AllocatorStats, BlockAllocator, BlockKey, BlockRef, Blocks, CachedBlock, PrefixMatch, PrefixQuery


class PlainPrefixCache:
    """Blocks that were given back with a key stay findable. The one given back longest ago goes first, a table's last before its first;
    those that somebody retains go after all others, however many they are."""

    prefix_cache = True

    def __init__(self, inner: BlockAllocator, clock: Callable[[], float] = monotonic) -> None:
        self.inner = inner
        self._clock = clock
        self._until: dict[int, float] = {}
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
        self._end_retention()
        block = next((block for block in self._idle if block not in self._until), next(iter(self._idle)))
        del self._idle[block]
        if self._sink is not None:
            self._sink(block, self._key_of[block])
        self._forget(block)
        self._num_evicted += 1
        return block

    def _forget(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]
        self._until.pop(block, None)

    def _end_retention(self) -> None:
        if self._until:
            now = self._clock()
            self._until = {block: until for block, until in self._until.items() if until > now}

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
            if block is None or key.group != query.group:
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
        holder = self._block_of.setdefault(key, block)
        if retain_until is not None:
            self._until[holder] = max(retain_until, self._until.get(holder, retain_until))
        if holder != block:
            return False
        assert self._key_of.setdefault(block, key) is key, f"block {block} is published a second time, under another key: a full block has one"
        return True

    def forget(self) -> int:
        count, idle = len(self._key_of), tuple(self._idle)
        for block, key in tuple(self._key_of.items()):
            if self._sink is not None:
                self._sink(block, key)
            self._forget(block)
        self._idle.clear()
        self._num_evicted += count
        if idle:
            self.inner.give(Blocks(idle))
        return count

    def stats(self) -> AllocatorStats:
        self._end_retention()
        below = self.inner.stats()
        return replace(below, num_idle=below.num_idle + len(self._idle), num_evicted=below.num_evicted + self._num_evicted, num_retained=len(self._until))

    def set_sink(self, sink: Callable[[int, BlockKey], None]) -> None:
        self._sink = sink

    def audit(self) -> Sequence[str]:
        sound = set(self._idle) == set(self._key_of) == set(self._block_of.values())
        return () if sound else ("prefix cache: keys and idle blocks differ",)

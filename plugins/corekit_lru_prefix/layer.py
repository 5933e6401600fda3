"""The prefix cache: blocks that were published stay findable after their last owner until their room is needed.

Knows blocks and keys, and when they were idle; nothing of requests, of hashes, or of what lies above and beneath.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from corekit.api import AllocatorStats, BlockAllocator, BlockKey, BlockRef, Blocks, CachedBlock, PrefixMatch, PrefixQuery

from .lifetimes import Lifetimes
from .options import LruPrefixOptions
from .ranking import Ranking
from .retention import Retention

MAX_EXPIRED: Final = 64
"""Most deadlines that one call drops, besides one for each block that it was asked for: however many pass at once, no call takes long."""


class LruPrefix:
    """Invariant: a key finds one block, and that block has this key alone; it is idle, or used as far as this layer knows.

    Idle blocks stand in `_idle`, least recently used first; of a table that was given back, later ones before earlier ones.
    Those that were retained when they came stand `_aside`, in the same order, and go last. Once its deadline is dropped such a key
    is `_ripe` too, and its block goes in its turn among those of `_idle`, by `_numbers`. A block has its number in the order of giving
    if anything was retained or aside when it came. Without one, or with that of an earlier life, it came before all that is aside.
    """

    prefix_cache = True

    def __init__(self, inner: BlockAllocator, options: LruPrefixOptions, *, clock: Callable[[], float], seed: int = 0) -> None:
        self.inner = inner
        self._found: dict[BlockKey, CachedBlock] = {}
        self._key_of: dict[int, BlockKey] = {}
        self._idle: OrderedDict[BlockKey, int] = OrderedDict()
        self._aside: OrderedDict[BlockKey, int] = OrderedDict()
        self._ripe = Ranking()
        """By number; all of them are aside."""
        self._numbers: dict[int, int] = {}
        self._next_number = itertools.count(1)
        self._retention = Retention(int(options.max_retained * inner.available), clock)  # nothing is used while the stack is built
        self._lifetimes = Lifetimes(options.sample_every, clock, seed)
        self._gap = self._lifetimes.gap() if options.sample_every else 0
        """How many are published until one is watched; 0: none will be."""
        self._sink: Callable[[int, BlockKey], None] | None = None
        self._num_evicted = 0

    @property
    def available(self) -> int:
        return self.inner.available + len(self._idle) + len(self._aside)

    def take(self, count: int) -> Blocks | None:
        free = self.inner.available
        if count <= free:
            return self.inner.take(count)
        if count > free + len(self._idle) + len(self._aside):
            return None
        if not free:
            return Blocks(tuple(self._evict(count)))
        below = self.inner.take(free)
        return None if below is None else Blocks((*below.ids, *self._evict(count - free)))

    def _evict(self, count: int) -> list[int]:
        """So many idle blocks lose their keys; they are there."""
        found, key_of, watched, sink = self._found, self._key_of, self._lifetimes.watched, self._sink
        self._ripen(count)
        oldest = self._oldest if self._aside or self._retention.keys else partial(self._idle.popitem, last=False)
        ids = []
        for _ in range(count):
            key, block = oldest()
            del found[key], key_of[block]
            if key in watched:
                self._lifetimes.evicted(key)
            if sink is not None:
                sink(block, key)
            ids.append(block)
        self._num_evicted += count
        return ids

    def _oldest(self) -> tuple[BlockKey, int]:
        """Take the block out that goes next, while some are retained or aside."""
        idle, aside, ripe = self._idle, self._aside, self._ripe
        if idle and (not ripe.keys or self._numbers.get(idle[next(iter(idle))], 0) < ripe.first[0]):
            key, block = idle.popitem(last=False)
        else:
            key = ripe.first[1] if ripe.keys else next(iter(aside))
            block = aside.pop(key)
            ripe.remove(key)
        self._retention.forget(key)
        return key, block

    def _ripen(self, asked: int) -> None:
        """Retained blocks whose deadline has passed are blocks like others; not all at once if there are many."""
        for key in self._retention.expire(asked + MAX_EXPIRED):
            if key in self._aside:
                self._ripe.put(key, self._numbers[self._aside[key]])

    def give(self, blocks: Blocks) -> None:
        key_of, idle, watched = self._key_of, self._idle, self._lifetimes.watched
        lay = self._lay if self._retention.keys or self._aside else None
        private = []
        for block in reversed(blocks.ids):
            key = key_of.get(block)
            if key is None:
                private.append(block)
                continue
            if lay is None:
                idle[key] = block
            else:
                lay(key, block)
            if key in watched:
                self._lifetimes.given(key)
        if private:
            self.inner.give(Blocks(tuple(reversed(private)), blocks.group))

    def _lay(self, key: BlockKey, block: int) -> None:
        """Behind all others, while some are retained or aside."""
        (self._aside if key in self._retention.keys else self._idle)[key] = block
        self._numbers[block] = next(self._next_number)

    def find(self, query: PrefixQuery) -> PrefixMatch:
        blocks: list[CachedBlock] = []
        for cached in map(self._found.get, query.keys):
            if cached is None:
                break
            blocks.append(cached)
        idle = sum(map(self._idle.__contains__, itertools.islice(query.keys, len(blocks))))
        if self._aside:
            idle += sum(map(self._aside.__contains__, itertools.islice(query.keys, len(blocks))))
        return PrefixMatch(tuple(blocks), idle)

    def hold(self, match: PrefixMatch) -> Blocks | None:
        found, idle, aside, watched = self._found, self._idle, self._aside, self._lifetimes.watched
        for cached in match.blocks:
            there = found.get(cached.key)
            if there is not cached and there != cached:  # the same, or one that a layer above has made anew
                return None
        for cached in match.blocks:
            key = cached.key
            if key in idle:
                del idle[key]
            elif key in aside:
                del aside[key]
                self._ripe.remove(key)
            else:
                continue
            if key in watched:
                self._lifetimes.held(key)
        return Blocks(tuple([cached.place.block for cached in match.blocks]))

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        there = self._found.get(key)
        if there is None:
            if self._key_of.setdefault(block, key) is not key:
                raise ValueError(
                    f"publish of block {block} under {key!r}: it holds {self._key_of[block]!r} already, and a full block does not change. "
                    "Whoever called gave it two contents. Publish each block of a table under its own key"
                )
            self._found[key] = CachedBlock(key, BlockRef(block))
            if self._gap:
                self._gap -= 1
                if not self._gap:
                    self._lifetimes.watch(key)
                    self._gap = self._lifetimes.gap()
        if retain_until is not None:
            self._retain(key, retain_until)
            if there is not None and key in self._retention.keys:
                self._renew(key, there.place.block)
        return there is None or there.place.block == block

    def _renew(self, key: BlockKey, block: int) -> None:
        """Somebody computed again what an idle block holds, and wants it to stay: that is a use of it."""
        if key in self._idle:
            del self._idle[key]
        elif key in self._aside:
            del self._aside[key]
            self._ripe.remove(key)
        else:
            return
        self._lay(key, block)

    def _retain(self, key: BlockKey, until: float) -> None:
        """As far as the bound allows."""
        if key not in self._retention.keys and self._retention.full():
            self._ripen(1)
            if self._retention.full():
                return
        self._retention.prolong(key, until)

    def forget(self) -> int:
        sink, watched, idle = self._sink, self._lifetimes.watched, [*self._idle.values(), *self._aside.values()]
        for key, cached in self._found.items():
            if key in watched and (key in self._idle or key in self._aside):
                self._lifetimes.evicted(key)
            if sink is not None:
                sink(cached.place.block, key)
            self._ripe.remove(key)
            self._retention.forget(key)
        watched.clear()  # of what is used nobody can say how long it would have been idle
        count = len(self._found)
        for kept in (self._found, self._key_of, self._idle, self._aside, self._numbers):
            kept.clear()
        self._num_evicted += count
        if idle:
            self.inner.give(Blocks(tuple(idle)))
        return count

    def stats(self) -> AllocatorStats:
        self._ripen(0)
        below, lives = self.inner.stats(), self._lifetimes
        return replace(
            below,
            num_idle=below.num_idle + len(self._idle) + len(self._aside),
            num_evicted=below.num_evicted + self._num_evicted,
            num_retained=below.num_retained + len(self._retention.keys),
            residency=lives.residency.durations,
            idle_before_evict=lives.idle_before_evict.durations,
            reuse_gap=lives.reuse_gap.durations,
        )

    def set_sink(self, sink: Callable[[int, BlockKey], None]) -> None:
        self._sink = sink

    def audit(self) -> Sequence[str]:
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        found = {key: cached.place.block for key, cached in self._found.items()}
        if {block: key for key, block in found.items()} != self._key_of or len(found) != len(self._key_of):
            yield "lru-prefix: the blocks that keys find and the keys that blocks hold differ"
        idle = {**self._aside, **self._idle}
        if len(idle) != len(self._idle) + len(self._aside):
            yield "lru-prefix: a block is idle twice"
        if idle.items() - found.items():
            yield f"lru-prefix: {len(idle.items() - found.items())} idle blocks are not found by their key"
        if lost := self._lifetimes.watched.keys() - found:
            yield f"lru-prefix: {len(lost)} watched blocks are not found by their key"
        retained = self._retention.keys
        if lost := retained - found.keys():
            yield f"lru-prefix: {len(lost)} retained blocks are not found by their key"
        if len(retained) > self._retention.most:
            yield f"lru-prefix: {len(retained)} blocks are retained, {self._retention.most} are allowed"
        if stuck := self._aside.keys() - retained - self._ripe.keys:
            yield f"lru-prefix: {len(stuck)} blocks are aside for a retention that is over"
        if lost := self._ripe.keys - self._aside.keys():
            yield f"lru-prefix: {len(lost)} keys of blocks that are not aside wait for their eviction"
        numbers = [self._numbers.get(block, 0) for block in self._aside.values()]
        if any(one >= other for one, other in itertools.pairwise((0, *numbers))):
            yield "lru-prefix: what is aside does not stand in the order of its numbers"

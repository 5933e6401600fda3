"""A small swap space over any stack: what the laws of parking are proved with. Right and simple; it also keeps what a cache evicts."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from corekit.api import (
    AllocatorStats,
    BlockAllocator,
    BlockKey,
    BlockRef,
    Blocks,
    CachedBlock,
    CopyJournal,
    PrefixMatch,
    PrefixQuery,
    SupportsEvictionSink,
    SupportsForgetting,
    Ticket,
)


class HostLayer:
    """Invariant: a slot is free, or pinned (tickets list it, or a hold reads it), or caches a key. A pinned slot is filled, or
    reserved: its key is on the device, and the sink fills it before that block is reused. A key has one slot at most."""

    def __init__(self, inner: BlockAllocator, journal: CopyJournal, num_host_blocks: int) -> None:
        self.inner = inner
        self.journal = journal
        self.num_host_blocks = num_host_blocks
        self.prefix_cache = getattr(inner, "prefix_cache", False)
        self.free = list(range(num_host_blocks))
        self.pins: Counter[int] = Counter()
        self.reserved: set[int] = set()
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.slot_of: dict[BlockKey, int] = {}
        self.key_of: dict[int, BlockKey] = {}
        self.hears = isinstance(inner, SupportsEvictionSink)
        if isinstance(inner, SupportsEvictionSink):
            inner.set_sink(self.catch)
        self.forgets = False
        if isinstance(inner, SupportsForgetting):
            self.forget = partial(self.forget_all, inner)

    @property
    def available(self) -> int:
        return self.inner.available

    def take(self, count: int) -> Blocks | None:
        return self.inner.take(count)

    def give(self, blocks: Blocks) -> None:
        self.inner.give(blocks)

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return self.inner.publish(block, key, retain_until)

    # -- slots

    def catch(self, block: int, key: BlockKey) -> None:
        """The sink: a reserved slot is filled; a key without a slot gets one if nobody parked there."""
        slot = self.slot_of.get(key)
        if slot in self.reserved:
            self.fill(block, slot)
        elif slot is None and not self.forgets and (self.free or self.cached):
            slot = self.claim(key)
            self.cached[slot] = None
            self.fill(block, slot)

    def fill(self, block: int, slot: int) -> None:
        self.reserved.discard(slot)
        self.journal.copy(BlockRef(block), BlockRef(slot, True))

    def claim(self, key: BlockKey | None) -> int:
        """A free slot, else the one that was cached longest ago."""
        if self.free:
            slot = self.free.pop()
        else:
            slot, _ = self.cached.popitem(last=False)
            del self.slot_of[self.key_of.pop(slot)]
        if key is not None:
            self.slot_of[key], self.key_of[slot] = slot, key
        return slot

    def forget_all(self, inner: SupportsForgetting) -> int:
        self.forgets = True
        count = inner.forget() + len(self.cached)
        self.forgets = False
        for slot in self.cached:
            del self.slot_of[self.key_of.pop(slot)]
        self.free += self.cached
        self.cached.clear()
        return count

    def pin(self, slot: int) -> None:
        self.pins[slot] += 1
        self.cached.pop(slot, None)

    def unpin(self, slot: int) -> None:
        self.pins[slot] -= 1
        if self.pins[slot]:
            return
        if slot in self.key_of and slot not in self.reserved:
            self.cached[slot] = None
            return
        self.reserved.discard(slot)
        if (key := self.key_of.pop(slot, None)) is not None:
            del self.slot_of[key]
        self.free.append(slot)

    # -- finding and holding

    def beneath(self, key: BlockKey | None) -> PrefixMatch:
        return PrefixMatch() if key is None else self.inner.find(PrefixQuery((key,), key.group))

    def find(self, query: PrefixQuery) -> PrefixMatch:
        found: list[CachedBlock] = []
        taken = 0
        for key in query.keys:
            below, slot = self.beneath(key), self.slot_of.get(key)
            if below.blocks:
                found += below.blocks
                taken += below.num_taken
            elif slot is not None:
                found.append(CachedBlock(key, BlockRef(slot, True)))
                taken += 1
            else:
                break
        return PrefixMatch(tuple(found), taken)

    def hold(self, match: PrefixMatch) -> Blocks | None:
        if self.find(PrefixQuery([cached.key for cached in match.blocks])) != match:
            return None
        places = [cached.place for cached in match.blocks]
        for place in places:
            if place.on_host:
                self.pin(place.block)
        held = self.gather([cached.key for cached in match.blocks], [place.block for place in places])
        for place in places:
            if place.on_host:
                self.unpin(place.block)
        return held

    def gather(self, keys: Sequence[BlockKey | None], slots: Sequence[int]) -> Blocks | None:
        """Device blocks with these keys, from pinned slots where the device has none. What it has is held first."""
        there = [self.beneath(key) for key in keys]
        if sum(one.num_taken if one.blocks else 1 for one in there) > self.available:
            return None
        table = dict[int, int]()
        for at, key in enumerate(keys):
            if there[at].blocks:
                held = self.inner.hold(self.beneath(key))
                assert held is not None, "the layer beneath refused what it found"
                table[at] = held.ids[0]
        missing = [at for at in range(len(keys)) if at not in table]
        taken = self.inner.take(len(missing))
        assert taken is not None, "the layer beneath refused what it says is available"
        for at, block in zip(missing, taken.ids, strict=True):
            self.journal.copy(BlockRef(slots[at], True), BlockRef(block))
            if (key := keys[at]) is not None:
                self.inner.publish(block, key)
            table[at] = block
        return Blocks(tuple(table[at] for at in range(len(keys))))

    # -- parking

    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        shared = [None if key is None else self.slot_of.get(key) for key in keys]
        if shared.count(None) > len(self.free) + len(self.cached.keys() - shared):
            return None
        for slot in shared:
            if slot is not None:
                self.pin(slot)
        slots = []
        for block, key, known in zip(blocks.ids, keys, shared, strict=True):
            slot = known
            if slot is None:
                slot = self.claim(key)
                self.pin(slot)
                if self.hears and key is not None and self.beneath(key).blocks:
                    self.reserved.add(slot)
                else:
                    self.fill(block, slot)
            slots.append(slot)
        return Ticket(tuple(slots))

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        held = self.gather([self.key_of.get(slot) for slot in ticket.slots], ticket.slots)
        if held is not None:
            self.drop(ticket)
        return held

    def drop(self, ticket: Ticket) -> None:
        for slot in ticket.slots:
            self.unpin(slot)

    def stats(self) -> AllocatorStats:
        return replace(self.inner.stats(), num_host_used=self.num_host_blocks - len(self.free), num_host_cached=len(self.cached))

    def audit(self) -> list[str]:
        free = not any(self.pins.values()) and not self.reserved
        sound = free and sorted([*self.free, *self.cached]) == list(range(self.num_host_blocks)) and self.key_of.keys() == self.cached.keys()
        return [] if sound else ["a host slot is pinned, or lost, or has two owners"]

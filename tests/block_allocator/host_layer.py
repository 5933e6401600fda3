"""A small swap space over any stack: what the laws of parking are proved with. Right and simple; it also catches what a cache evicts."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

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
    Ticket,
)


class HostLayer:
    """Invariant: a slot is free, or claimed by tickets, or caches a key (and both at once while a ticket shares it)."""

    def __init__(self, inner: BlockAllocator, journal: CopyJournal, num_host_blocks: int) -> None:
        self.inner = inner
        self.journal = journal
        self.num_host_blocks = num_host_blocks
        self.prefix_cache = getattr(inner, "prefix_cache", False)
        self.free = list(range(num_host_blocks))
        self.refs: Counter[int] = Counter()
        self.slot_of: dict[BlockKey, int] = {}
        self.key_of: dict[int, BlockKey] = {}
        self.cached: OrderedDict[int, None] = OrderedDict()
        if isinstance(inner, SupportsEvictionSink):
            inner.set_sink(self.catch)

    @property
    def available(self) -> int:
        return self.inner.available

    def take(self, count: int) -> Blocks | None:
        return self.inner.take(count)

    def give(self, blocks: Blocks) -> None:
        self.inner.give(blocks)

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return self.inner.publish(block, key, retain_until)

    def catch(self, block: int, key: BlockKey) -> None:
        if key not in self.slot_of and (self.free or self.cached):
            slot = self.claim(key)
            self.cached[slot] = None
            self.journal.copy(BlockRef(block), BlockRef(slot, True))

    def claim(self, key: BlockKey | None) -> int:
        if self.free:
            slot = self.free.pop()
        else:
            slot, _ = self.cached.popitem(last=False)
            del self.slot_of[self.key_of.pop(slot)]
        if key is not None:
            self.slot_of[key], self.key_of[slot] = slot, key
        return slot

    def pin(self, slot: int) -> None:
        self.refs[slot] += 1
        self.cached.pop(slot, None)

    def unpin(self, slot: int) -> None:
        self.refs[slot] -= 1
        if not self.refs[slot]:
            if slot in self.key_of:
                self.cached[slot] = None
            else:
                self.free.append(slot)

    def find(self, query: PrefixQuery) -> PrefixMatch:
        found: list[CachedBlock] = []
        taken = 0
        for key in query.keys:
            below = self.inner.find(PrefixQuery((key,)))
            if below.blocks:
                found += below.blocks
                taken += below.num_taken
            elif key in self.slot_of:
                found.append(CachedBlock(key, BlockRef(self.slot_of[key], True)))
                taken += 1
            else:
                break
        return PrefixMatch(tuple(found), taken)

    def hold(self, match: PrefixMatch) -> Blocks | None:
        if self.find(PrefixQuery([cached.key for cached in match.blocks])) != match or match.num_taken > self.available:
            return None
        stayed = [cached for cached in match.blocks if not cached.place.on_host]
        hits = [cached for cached in match.blocks if cached.place.on_host]
        for cached in hits:
            self.pin(cached.place.block)
        self.inner.hold(PrefixMatch(tuple(stayed), match.num_taken - len(hits)))
        taken = self.inner.take(len(hits))
        assert taken is not None
        at = {cached.key: cached.place.block for cached in stayed}
        for block, cached in zip(taken.ids, hits, strict=True):
            self.journal.copy(cached.place, BlockRef(block))
            self.inner.publish(block, cached.key)
            self.unpin(cached.place.block)
            at[cached.key] = block
        return Blocks(tuple(at[cached.key] for cached in match.blocks))

    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        shared = {self.slot_of[key] for key in keys if key in self.slot_of}
        if sum(key not in self.slot_of for key in keys) > len(self.free) + len(self.cached) - len(shared.intersection(self.cached)):
            return None
        for slot in shared:
            self.pin(slot)
        slots = []
        for block, key in zip(blocks.ids, keys, strict=True):
            slot = self.slot_of.get(key) if key is not None else None
            if slot is None:
                slot = self.claim(key)
                self.journal.copy(BlockRef(block), BlockRef(slot, True))
            if slot not in shared:
                self.pin(slot)
            slots.append(slot)
        return Ticket(tuple(slots))

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        taken = self.inner.take(len(ticket.slots))
        if taken is not None:
            for block, slot in zip(taken.ids, ticket.slots, strict=True):
                self.journal.copy(BlockRef(slot, True), BlockRef(block))
            self.drop(ticket)
        return taken

    def drop(self, ticket: Ticket) -> None:
        for slot in ticket.slots:
            self.unpin(slot)

    def stats(self) -> AllocatorStats:
        below = self.inner.stats()
        return AllocatorStats(
            num_free=below.num_free, num_idle=below.num_idle, num_evicted=below.num_evicted, num_host_used=self.num_host_blocks - len(self.free)
        )

    def audit(self) -> list[str]:
        sound = not any(self.refs.values()) and sorted([*self.free, *self.cached]) == list(range(self.num_host_blocks))
        return [] if sound else ["a host slot is claimed, or lost, or has two owners"]

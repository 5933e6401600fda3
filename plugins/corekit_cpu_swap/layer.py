"""The layer `cpu-swap`: parks tables in the host's memory and keeps there what the layer beneath evicts. Knows no requests and copies nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

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

from .slots import HostSlots

_Runs: TypeAlias = Sequence[tuple[int, PrefixMatch]]


class CpuSwap:
    """Invariant: whatever a ticket lists can be read, on the host or, by its key, on the device. All else is HostSlots'.

    The host tier is inclusive: what comes back by copy stays cached there. Device blocks are the business of the layer
    beneath, whose methods are bound as they are. Its eviction sink is used here and not passed on: a layer above would be
    told of half of what this one forgets, since a host slot has no device block to name.
    """

    def __init__(self, inner: BlockAllocator, journal: CopyJournal, *, num_slots: int, max_cached: int) -> None:
        self.inner = inner
        self.num_host_blocks = num_slots
        self._journal = journal
        self._slots = HostSlots(num_slots, max_cached)
        self._catches = False
        self._forgets = False
        """While it does, nothing new is kept."""
        if isinstance(inner, SupportsEvictionSink) and num_slots:
            inner.set_sink(self._catch)
            self._catches = True
        self.take = inner.take
        self.give = inner.give
        self.publish = inner.publish
        if isinstance(inner, SupportsForgetting):
            self.forget = partial(self._forget, inner)
        self.find = self._find if num_slots else inner.find
        self.hold = self._hold if num_slots else inner.hold

    @property
    def prefix_cache(self) -> bool:
        return bool(getattr(self.inner, "prefix_cache", False))

    @property
    def available(self) -> int:
        return self.inner.available

    # -- prefixes: the device first, then the host

    def _find(self, query: PrefixQuery) -> PrefixMatch:
        match, keys, filled = self.inner.find(query), query.keys, self._slots.filled
        gap = len(match.blocks)
        if gap == len(keys) or filled(keys[gap]) is None:
            return match
        found, num_taken = list(match.blocks), match.num_taken
        for at in range(gap, len(keys)):
            key = keys[at]
            if at > gap and (one := self.inner.find(_query((key,)))).blocks:
                found += one.blocks
                num_taken += one.num_taken
            elif (slot := filled(key)) is not None:
                found.append(CachedBlock(key, BlockRef(slot, True)))
                num_taken += 1
            else:
                break
        return PrefixMatch(tuple(found), num_taken)

    def _hold(self, match: PrefixMatch) -> Blocks | None:
        places = [cached.place for cached in match.blocks]
        hits = [place.block for place in places if place.on_host]
        if not hits:
            return self.inner.hold(match)
        keys = [cached.key for cached in match.blocks]
        runs = self._runs(keys)
        now = [None if (slot := self._slots.filled(key)) is None else BlockRef(slot, True) for key in keys]
        for start, run in runs:
            now[start : start + len(run.blocks)] = [cached.place for cached in run.blocks]
        if now != places or self._needed(keys, runs) > self.available:
            return None
        for slot in hits:
            self._slots.refer(slot)
        try:
            return self._gather(keys, [place.block for place in places], runs)
        finally:
            self._slots.release(hits)

    def _runs(self, keys: Sequence[BlockKey | None]) -> _Runs:
        """Where keys are on the device: index of the first, and the match. One question for the usual case, single keys after a gap."""
        chain: list[BlockKey] = []
        for key in keys:
            if key is None:
                break
            chain.append(key)
        match = self.inner.find(_query(chain)) if chain else PrefixMatch()
        runs = [(0, match)] if match.blocks else []
        for at in range(len(match.blocks) + 1, len(keys)):
            later = keys[at]
            if later is not None and (one := self.inner.find(_query((later,)))).blocks:
                runs.append((at, one))
        return runs

    @staticmethod
    def _needed(keys: Sequence[BlockKey | None], runs: _Runs) -> int:
        """How many of `available` they use: what is idle on the device, and a block for each that is not there."""
        return len(keys) + sum(run.num_taken - len(run.blocks) for _, run in runs)

    def _gather(self, keys: Sequence[BlockKey | None], slots: Sequence[int], runs: _Runs) -> Blocks | None:
        """Device blocks for these keys, from their slots where the device has none. Slots are referenced, and as many as needed are available.

        What the device has is held before anything is taken, so nothing of it is evicted. None, changing nothing, where the
        layer beneath refuses the first thing, or has lost a key without a word to the sink; RuntimeError where it is too late for that.
        """
        there = {at for start, run in runs for at in range(start, start + len(run.blocks))}
        missing = [at for at in range(len(keys)) if at not in there]
        if any(self._slots.is_awaited(slots[at]) for at in missing):
            return None  # nobody has it any more
        table = [0] * len(keys)
        for start, run in runs:
            held = self.inner.hold(self.inner.find(_query([cached.key for cached in run.blocks])))
            if held is None and not any(table):
                return None
            if held is None or len(held.ids) != len(run.blocks):
                raise self._broken("hold", held, len(run.blocks), "all that its find had just found")
            table[start : start + len(held.ids)] = held.ids
        taken = self.inner.take(len(missing)) if missing else Blocks()
        if taken is None and not any(table):
            return None
        if taken is None or len(taken.ids) != len(missing):
            raise self._broken("take", taken, len(missing), "as many as are asked for, up to its available")
        for at, block in zip(missing, taken.ids, strict=True):
            self._journal.copy(BlockRef(slots[at], True), BlockRef(block))
            if (key := keys[at]) is not None:
                self.inner.publish(block, key)
            table[at] = block
        return Blocks(tuple(table))

    def _broken(self, method: str, given: Blocks | None, count: int, promise: str) -> RuntimeError:
        gave = "nothing" if given is None else f"{len(given.ids)} blocks"
        return RuntimeError(
            f"{type(self.inner).__name__}.{method}, beneath cpu-swap, gave {gave} where {count} were due: it promises {promise}. "
            "Blocks have changed hands already, so it is too late to refuse. Run `corekit plugins check` on that layer"
        )

    def _catch(self, block: int, key: BlockKey) -> None:
        """The sink: a device block is about to lose its key."""
        slots = self._slots
        slot = slots.slot_of.get(key)
        if slot is None and self._forgets:
            return
        if slot is None:
            slot = slots.keep(key)
            if slot is None:
                return
        elif slots.is_awaited(slot):
            slots.fill(slot)
        else:
            slots.touch(slot)
            return
        self._journal.copy(BlockRef(block), BlockRef(slot, True))

    def _forget(self, inner: SupportsForgetting) -> int:
        """What is beneath and what is cached here. What is parked is still found, by then on the host."""
        self._forgets = True
        try:
            return inner.forget() + self._slots.forget_cached()
        finally:
            self._forgets = False

    # -- parking

    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        slots = self._slots
        known = [None if key is None else slots.slot_of.get(key) for key in keys]
        if known.count(None) > slots.room_beside(known):
            return None
        for slot in known:
            if slot is not None:
                slots.refer(slot)  # before anything is claimed, which displaces what is cached
        there = {at for start, run in self._runs(keys) for at in range(start, start + len(run.blocks))} if self._catches else set()
        table = []
        for at, (block, key, slot) in enumerate(zip(blocks.ids, keys, known, strict=True)):
            if slot is None:
                slot = slots.claim(key, awaited=at in there)
                if at not in there:
                    self._journal.copy(BlockRef(block), BlockRef(slot, True))
            table.append(slot)
        return Ticket(tuple(table))

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        keys = [self._slots.key_of(slot) for slot in ticket.slots]
        runs = self._runs(keys)
        if self._needed(keys, runs) > self.available:
            return None
        held = self._gather(keys, ticket.slots, runs)
        if held is not None:
            self._slots.release(ticket.slots)
        return held

    def drop(self, ticket: Ticket) -> None:
        self._slots.release(ticket.slots)

    # -- what others look at

    def stats(self) -> AllocatorStats:
        below, slots = self.inner.stats(), self._slots
        return replace(
            below,
            num_host_used=below.num_host_used + slots.count - slots.num_free,
            num_host_cached=below.num_host_cached + slots.num_cached,
        )

    def audit(self) -> Sequence[str]:
        return [f"cpu-swap: {problem}" for problem in self._slots.audit()]


def _query(keys: Sequence[BlockKey]) -> PrefixQuery:
    return PrefixQuery(keys, keys[0].group)

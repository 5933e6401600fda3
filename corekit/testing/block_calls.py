"""The core's side of every call to an allocator stack: tables' references, keys and tickets in plain dictionaries.

Checks what each call answers and what it leaves: owners, counts, keys, refusals. Knows nothing of contents, and no implementation.
Owned by the kit of slot `block_allocator`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

from corekit.api import (
    AllocatorStats,
    BlockAllocator,
    BlockKey,
    BlockRef,
    Blocks,
    Copy,
    PrefixMatch,
    PrefixQuery,
    SupportsForgetting,
    SupportsPrefixCache,
    SupportsSwap,
    Ticket,
)

BLOCK_SIZE: Final = 4
NUM_SAID: Final = 12
"""The last calls that a message tells."""


def key_chain(*names: int, root: BlockKey | None = None, group: int = 0) -> list[BlockKey]:
    """New keys, each the child of the one before. The core interns keys, so equal names of two calls are different keys here."""
    keys: list[BlockKey] = []
    for name in names:
        parent = keys[-1] if keys else root
        digest = hashlib.sha256((parent.hash if parent else b"") + str(name).encode()).digest()
        keys.append(BlockKey(hash=digest, parent=parent, tokens=(name,) * BLOCK_SIZE, group=group))
    return keys


class Journal:
    """The copy journal that a layer is built with. Nothing is dropped."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []

    def copy(self, source: BlockRef, target: BlockRef) -> None:
        self.copies.append(Copy(source, target))

    def drain(self) -> list[Copy]:
        copies, self.copies = self.copies, []
        return copies


class Clock:
    """Seconds that pass when a law says so; far from what any clock of the machine shows."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


class Calls:
    """Invariant: `refs[b]` tables list block b, `available` is the number of blocks that none lists, and `holder` has the used
    block of every key that was published or held."""

    def __init__(self, stack: BlockAllocator, journal: Journal, num_blocks: int, clock: Clock) -> None:
        self.stack = stack
        self.journal = journal
        self.num_blocks = num_blocks
        self.clock = clock
        self.caches = isinstance(stack, SupportsPrefixCache) and bool(stack.prefix_cache)
        self.swap: SupportsSwap | None = stack if isinstance(stack, SupportsSwap) and stack.num_host_blocks > 0 else None
        self.refs: Counter[int] = Counter()
        self.key_of: dict[int, BlockKey] = {}
        self.holder: dict[BlockKey, int] = {}
        self.tickets: list[tuple[Ticket, Sequence[BlockKey | None]]] = []
        self.said: list[str] = []
        self._num_evicted = 0

    def check(self, fine: object, message: str) -> None:
        """Fails with the message and the last calls."""
        assert fine, f"{message}. The last calls: {'; '.join(self.said)}"

    def _say(self, call: str) -> None:
        self.said.append(call)
        del self.said[:-NUM_SAID]

    def _counted(self, call: str) -> None:
        """At every moment `available` is what no table lists."""
        now, right = self.stack.available, self.num_blocks - len(self.refs)
        self.check(now == right, f"{call} left {now} blocks available; {len(self.refs)} of {self.num_blocks} are used, so it must be {right}")

    def _unchanged(self, num_copies: int, call: str) -> None:
        self._counted(f"{call} refused, which changes nothing, but")
        made = self.journal.copies[num_copies:]
        self.check(not made, f"{call} refused, but journaled {made}: a refusal changes nothing")

    def _blocks(self, given: object, call: str) -> Blocks | None:
        self.check(given is None or isinstance(given, Blocks), f"{call} gave {given!r}, expected Blocks, or None for a refusal")
        self._say(f"{call} -> {given.ids if isinstance(given, Blocks) else None}")
        return given if isinstance(given, Blocks) else None

    def _hand_out(self, ids: Sequence[int], call: str) -> None:
        """Blocks that nobody used, and whatever they held is theirs no more."""
        self.check(all(1 <= block <= self.num_blocks for block in ids), f"{call} handed out {ids}: ids are 1..{self.num_blocks}, 0 is the null block")
        self.check(len(set(ids)) == len(ids), f"{call} handed out a block twice: {ids}")
        self.check(not (used := [b for b in ids if self.refs[b]]), f"{call} handed out {used}, which are used")
        for block in ids:
            self.key_of.pop(block, None)

    def _keyed(self, block: int, key: BlockKey, call: str) -> None:
        self.check(self.holder.get(key, block) == block, f"{call} gave block {block} for {key}, which the used block {self.holder.get(key)} holds")
        self.key_of[block], self.holder[key] = key, block

    # -- what the core asks of a stack

    def take(self, count: int) -> list[int] | None:
        before, num_copies, call = self.stack.available, len(self.journal.copies), f"take({count})"
        taken = self._blocks(self.stack.take(count), call)
        if taken is None:
            self.check(count > before, f"{call} refused although {before} were available")
            self._unchanged(num_copies, call)
            return None
        ids = list(taken.ids)
        self.check(len(ids) == count, f"{call} handed out {len(ids)} blocks")
        self._hand_out(ids, call)
        self.share(ids)
        self._counted(call)
        return ids

    def share(self, ids: Sequence[int]) -> None:
        """One table more lists these blocks."""
        for block in ids:
            self.refs[block] += 1

    def give(self, ids: Sequence[int]) -> None:
        """One table less lists these blocks."""
        last = []
        for block in ids:
            self.refs[block] -= 1
            if not self.refs[block]:
                del self.refs[block]
                last.append(block)
                key = self.key_of.get(block)
                if key is not None and self.holder.get(key) == block:
                    del self.holder[key]
        if last:
            self.stack.give(Blocks(tuple(last)))
            self._say(f"give({tuple(last)})")
            self._counted(f"give({tuple(last)})")

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        """The only table that lists the block has filled it; or it holds the key already, and is to be kept longer."""
        holder = self.holder.get(key, block if self.key_of.get(block) is key else None)
        published = self.stack.publish(block, key, retain_until)
        call = f"publish({block}, {key.tokens})"
        self._say(f"{call} -> {published}")
        self.check(
            holder is None or published is (holder == block),
            f"{call} answered {published}, but the used block {holder} holds that key: True for that block, False for any other, which stays private",
        )
        if published:
            self._keyed(block, key, call)
        there = self._looked([key]).blocks
        self.check(there, f"{call} answered {published}, so {'it' if published else 'another block'} holds the key, but the key is not found")
        self.check(not published or there[0].place == BlockRef(block), f"{call} answered True, but the key is found at {there[0].place}")
        self._counted(call)
        return published

    def find(self, keys: Sequence[BlockKey]) -> PrefixMatch:
        match = self._looked(keys)
        self._say(f"find({[key.tokens for key in keys]}) -> {[cached.place for cached in match.blocks]}, taking {match.num_taken}")
        return match

    def _looked(self, keys: Sequence[BlockKey]) -> PrefixMatch:
        num_copies = len(self.journal.copies)
        match = self.stack.find(PrefixQuery(tuple(keys), keys[0].group if keys else 0))
        places = [cached.place for cached in match.blocks]
        call = f"find({[key.tokens for key in keys]}) -> {places}, taking {match.num_taken}"
        self._counted(f"{call}, which takes nothing,")
        self.check(len(self.journal.copies) == num_copies, f"{call} copied something")
        self.check(
            len(places) <= len(keys) and all(c.key is key for c, key in zip(match.blocks, keys, strict=False)),
            f"{call}: a match holds the first keys of its query, in order",
        )
        for key, place in zip(keys, places, strict=False):
            ours = key if place.on_host else self.key_of.get(place.block)
            self.check(ours is key, f"{call}, but block {place.block} was never published under {key}")
        wanted = sum(place.on_host or not self.refs[place.block] for place in places)
        self.check(match.num_taken == wanted, f"{call}: idle blocks and host hits of this match are {wanted}")
        if len(places) < len(keys):
            missed = keys[len(places)]
            self.check(missed not in self.holder, f"{call} stops before {missed}, which the used block {self.holder.get(missed)} holds")
            self.check(not any(missed in held for _, held in self.tickets), f"{call} stops before {missed}, which is parked: what is parked is found")
        return match

    def hold(self, match: PrefixMatch) -> list[int] | None:
        """Right after its find, and with num_taken blocks available."""
        num_copies, call = len(self.journal.copies), f"hold({[cached.place for cached in match.blocks]})"
        held = self._blocks(self.stack.hold(match), call)
        if held is None:
            self._unchanged(num_copies, call)
            return None
        ids = list(held.ids)
        self.check(len(ids) == len(match.blocks), f"{call} gave {len(ids)} blocks")
        moved = [block for block, cached in zip(ids, match.blocks, strict=True) if cached.place.on_host]
        stayed = [(block, cached.place.block) for block, cached in zip(ids, match.blocks, strict=True) if not cached.place.on_host]
        self.check(all(block == place for block, place in stayed), f"{call} gave {ids}: a device hit is the block itself, in order")
        self.check(not set(moved).intersection(block for block, _ in stayed), f"{call} took a block of the match itself for a host hit: pin it first")
        self._hand_out(moved, call)
        self.share(ids)
        for block, cached in zip(ids, match.blocks, strict=True):
            self._keyed(block, cached.key, call)
        self._counted(call)
        return ids

    def forget(self) -> int:
        """Whoever used a block uses it still."""
        assert isinstance(self.stack, SupportsForgetting)
        count = self.stack.forget()
        self._say(f"forget() -> {count}")
        self.key_of, self.holder = {}, {}
        self._counted("forget()")
        return count

    def swap_out(self, ids: Sequence[int], keys: Sequence[BlockKey | None] | None = None) -> Ticket | None:
        """Park a table, whose references the caller gives back. keys: None for what the blocks were published under."""
        assert self.swap is not None
        held = [self.key_of.get(block) for block in ids] if keys is None else keys
        num_copies, call = len(self.journal.copies), f"swap_out({tuple(ids)})"
        ticket = self.swap.swap_out(Blocks(tuple(ids)), held)
        self._say(f"{call} -> {ticket}")
        if ticket is None:
            room = self.swap.num_host_blocks - self.num_parked
            self.check(len(ids) > room, f"{call} refused although all but {self.num_parked} of {self.swap.num_host_blocks} host blocks are there for who parks")
            self._unchanged(num_copies, call)
            return None
        self.check(len(ticket.slots) == len(ids), f"{call}: the ticket has {len(ticket.slots)} slots for {len(ids)} blocks")
        self._counted(f"{call}, which gives nothing back,")
        self.tickets.append((ticket, held))
        return ticket

    @property
    def num_parked(self) -> int:
        """Host slots that tickets list."""
        return len({slot for ticket, _ in self.tickets for slot in ticket.slots})

    def swap_in(self, ticket: Ticket) -> list[int] | None:
        assert self.swap is not None
        at = self._index(ticket)
        keys = self.tickets[at][1]
        needed = sum(1 if key is None else self._looked([key]).num_taken for key in keys)
        before, num_copies, call = self.stack.available, len(self.journal.copies), f"swap_in({ticket.slots})"
        blocks = self._blocks(self.swap.swap_in(ticket), call)
        if blocks is None:
            self.check(
                needed > before,
                f"{call} refused although {before} blocks were available: it needs what find says for its keys and one for each other, {needed}",
            )
            self._unchanged(num_copies, call)
            return None
        ids = list(blocks.ids)
        self.check(needed <= before, f"{call} gave {ids} with {before} blocks available, and it takes {needed}")
        self.check(len(set(ids)) == len(ids) == len(keys), f"{call} gave {ids} for {len(keys)} blocks")
        del self.tickets[at]
        self._hand_out([block for block, key in zip(ids, keys, strict=True) if key is None or self.key_of.get(block) is not key], call)
        self.share(ids)
        for block, key in zip(ids, keys, strict=True):
            if key is not None:
                self._keyed(block, key, call)
                there = self._looked([key]).blocks
                self.check(there and there[0].place == BlockRef(block), f"{call} gave block {block} for {key}, which is found at {[c.place for c in there]}")
        self._counted(call)
        return ids

    def drop(self, ticket: Ticket) -> None:
        assert self.swap is not None
        del self.tickets[self._index(ticket)]
        self.swap.drop(ticket)
        self._say(f"drop({ticket.slots})")
        self._counted(f"drop({ticket.slots})")

    def _index(self, ticket: Ticket) -> int:
        """Siblings may have equal tickets, which then stand for equal contents."""
        return next(at for at, (parked, _) in enumerate(self.tickets) if parked == ticket)

    def check_copy(self, source: BlockRef, target: BlockRef) -> None:
        """Both are places that exist."""
        most = self.swap.num_host_blocks if self.swap else 0
        for place in (source, target):
            legal = 0 <= place.block < most if place.on_host else 1 <= place.block <= self.num_blocks
            self.check(legal, f"the journal copies from {source} to {target}; the device has blocks 1..{self.num_blocks}, the host 0..{most - 1}")

    def check_found(self) -> None:
        """Every key that a used block holds is found there, and every key that is parked is found."""
        for key in (*self.holder, *(key for _, held in self.tickets for key in held if key is not None)):
            self._looked([key])

    def check_stats(self) -> AllocatorStats:
        """What stats says agrees with `available` and with the tickets."""
        stats, most = self.stack.stats(), self.swap.num_host_blocks if self.swap else 0
        self.check(stats.num_free + stats.num_idle == self.stack.available, f"{stats}, but available is {self.stack.available}")
        self.check(stats.num_evicted >= self._num_evicted, f"num_evicted fell from {self._num_evicted} to {stats.num_evicted}")
        self._num_evicted = stats.num_evicted
        self.check(0 <= stats.num_retained <= self.num_blocks, f"{stats}: num_retained is out of 0..{self.num_blocks}")
        for name in ("residency", "idle_before_evict", "reuse_gap"):
            seen = getattr(stats, name)
            fits = len(seen.counts) == len(seen.bounds) + 1 and list(seen.bounds) == sorted(set(seen.bounds)) and min(seen.counts) >= 0 <= seen.sum
            self.check(fits, f"{name} is {seen}: bounds ascend, counts are one more than bounds, nothing is negative")
        if self.swap:
            used, cached = stats.num_host_used, stats.num_host_cached
            self.check(0 <= cached <= used <= most, f"num_host_cached is {cached} of num_host_used {used} of {most} host blocks")
            self.check(used - cached == self.num_parked, f"{used - cached} host blocks are used and not cached; tickets list {self.num_parked}")
        return stats

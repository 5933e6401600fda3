"""Plausibly broken swap layers, each with the law of the kit that must catch it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from host_layer import HostLayer

from corekit.api import AllocatorStats, BlockKey, BlockRef, Blocks, PrefixMatch, PrefixQuery, SupportsForgetting, Ticket


class NoSlots(HostLayer):
    """Its number of host blocks is rounded down to nothing."""

    def __init__(self, inner: Any, journal: Any, num_host_blocks: int) -> None:
        super().__init__(inner, journal, 0)


class CopiesAcross(HostLayer):
    """Blocks come back in another order than they were parked."""

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        return super().swap_in(Ticket(ticket.slots[::-1]))


class NeverFills(HostLayer):
    """The sink keeps what nobody parked, and thinks that what is parked was copied then."""

    def catch(self, block: int, key: BlockKey) -> None:
        if self.slot_of.get(key) not in self.reserved:
            super().catch(block, key)


class GroupsCopies(HostLayer):
    """Batches its copies by direction: those to the host come after those of the blocks that come back."""

    late: list[tuple[int, int]] | None = None

    def fill(self, block: int, slot: int) -> None:
        if self.late is None:
            super().fill(block, slot)
        else:
            self.reserved.discard(slot)
            self.late.append((block, slot))

    def gather(self, keys: Sequence[BlockKey | None], slots: Sequence[int]) -> Blocks | None:
        self.late = []
        held = super().gather(keys, slots)
        late, self.late = self.late, None
        for block, slot in late:
            self.fill(block, slot)
        return held


class FindsWhatItCaches(HostLayer):
    """What is parked belongs to who parked it, so others do not find it."""

    def find(self, query: PrefixQuery) -> PrefixMatch:
        blocks = []
        for cached in super().find(query).blocks:
            if cached.place.on_host and cached.place.block not in self.cached:
                break
            blocks.append(cached)
        return super().find(PrefixQuery([cached.key for cached in blocks], query.group))


class WantsAll(HostLayer):
    """swap_in asks for as many blocks as the ticket has, though some are there already."""

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        return super().swap_in(ticket) if len(ticket.slots) <= self.available else None


class ComesBackPrivate(HostLayer):
    """What comes back is a block of the request, and of nobody else."""

    def gather(self, keys: Sequence[BlockKey | None], slots: Sequence[int]) -> Blocks | None:
        on_device = [key if self.beneath(key).blocks else None for key in keys]
        return super().gather(on_device, slots)


class GivesAtOnce(HostLayer):
    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        ticket = super().swap_out(blocks, keys)
        if ticket is not None:
            self.give(blocks)
        return ticket


class KeepsTickets(HostLayer):
    """swap_in leaves the ticket to a drop that never comes."""

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        return self.gather([self.key_of.get(slot) for slot in ticket.slots], ticket.slots)


class NeverDrops(HostLayer):
    def swap_in(self, ticket: Ticket) -> Blocks | None:
        taken = super().swap_in(ticket)
        if taken is not None:
            super().drop(ticket)
        return taken

    def drop(self, ticket: Ticket) -> None:
        pass


class DropsForAll(HostLayer):
    """A dropped ticket takes the slots with it that another one lists."""

    def drop(self, ticket: Ticket) -> None:
        for slot in ticket.slots:
            self.pins[slot] = 1
        super().drop(ticket)


class OwnSlots(HostLayer):
    """Every ticket has slots of its own: the key of a slot that is taken is given up."""

    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        return super().swap_out(blocks, [None if key in self.slot_of else key for key in keys])


class AlwaysCopies(HostLayer):
    """Right, but what it promised to spare it does not."""

    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        self.hears = False
        return super().swap_out(blocks, keys)


class UnpinsEarly(HostLayer):
    """hold trusts that what it reads stays where it is: the slot is displaced by what its own take evicts."""

    def pin(self, slot: int) -> None:
        if self.holding:
            return
        super().pin(slot)

    def unpin(self, slot: int) -> None:
        if not self.holding:
            super().unpin(slot)

    holding = False

    def hold(self, match: PrefixMatch) -> Blocks | None:
        self.holding = True
        held = super().hold(match)
        self.holding = False
        return held


class BelievesHostMatches(HostLayer):
    """hold does not look whether the match is still true."""

    def find(self, query: PrefixQuery) -> PrefixMatch:
        return super().find(query) if self.believed is None else self.believed

    believed: PrefixMatch | None = None

    def hold(self, match: PrefixMatch) -> Blocks | None:
        self.believed = match
        held = super().hold(match)
        self.believed = None
        return held


class RemembersBlocks(HostLayer):
    """Siblings park the half-filled block that they share once, by its number: though it may have been written anew since."""

    def __init__(self, inner: Any, journal: Any, num_host_blocks: int) -> None:
        super().__init__(inner, journal, num_host_blocks)
        self.parked_from: dict[int, int] = {}

    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        ticket = super().swap_out(blocks, keys)
        slots = list(ticket.slots) if ticket else []
        for at, (block, key) in enumerate(zip(blocks.ids, keys, strict=True)):
            if ticket and key is None:
                known = self.parked_from.setdefault(block, slots[at])
                if known != slots[at] and self.pins[known] and known not in self.key_of:
                    self.unpin(slots[at])
                    self.pin(known)
                    slots[at] = known
        return ticket and Ticket(tuple(slots))


class Searches(HostLayer):
    """Looks through all that was given back for what it parks."""

    def __init__(self, inner: Any, journal: Any, num_host_blocks: int) -> None:
        super().__init__(inner, journal, num_host_blocks)
        self.given: list[int] = []

    def give(self, blocks: Blocks) -> None:
        self.given += blocks.ids
        super().give(blocks)

    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        self.given = [block for block in self.given if block not in blocks.ids]
        return super().swap_out(blocks, keys)


class NeverUnpins(HostLayer):
    """What was held once is pinned for ever."""

    def hold(self, match: PrefixMatch) -> Blocks | None:
        for cached in match.blocks:
            if cached.place.on_host:
                self.pin(cached.place.block)
        return super().hold(match)


class FreeSlotsOnly(HostLayer):
    """What it caches is not there for who parks."""

    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        return super().swap_out(blocks, keys) if len(blocks.ids) <= len(self.free) else None


class CountsNoCache(HostLayer):
    """Its stats were written when nothing was cached on the host."""

    def stats(self) -> AllocatorStats:
        return AllocatorStats(num_free=self.inner.available, num_host_used=self.num_host_blocks - len(self.free))


class PushesOut(HostLayer):
    """A full host loses what was parked first."""

    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        while len(self.free) + len(self.cached) < len(blocks.ids):
            self.unpin(next(slot for slot, count in self.pins.items() if count))
        return super().swap_out(blocks, keys)


class DropsRefused(HostLayer):
    """A ticket that finds no room is gone."""

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        if len(ticket.slots) > self.available:
            self.drop(ticket)
            return None
        if any(not self.pins[slot] for slot in ticket.slots):
            return None
        return super().swap_in(ticket)


class HoldsBeforeItRefuses(HostLayer):
    """swap_in holds what is on the device, then sees that the rest does not fit."""

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        for slot in ticket.slots:
            self.inner.hold(self.beneath(self.key_of.get(slot)))
        return super().swap_in(ticket)


class TakesFirst(HostLayer):
    """Takes blocks for the host hits before it holds the others."""

    def hold(self, match: PrefixMatch) -> Blocks | None:
        hits = [cached for cached in match.blocks if cached.place.on_host]
        stayed = [cached for cached in match.blocks if not cached.place.on_host]
        taken = self.inner.take(len(hits))
        held = self.inner.hold(PrefixMatch(tuple(stayed), match.num_taken - len(hits)))
        if taken is None or held is None:
            return None
        for block, cached in zip(taken.ids, hits, strict=True):
            self.journal.copy(cached.place, BlockRef(block))
            self.inner.publish(block, cached.key)
        return Blocks(held.ids + taken.ids)


class LosesWhatIsAwaited(HostLayer):
    """While it forgets, its sink is deaf to what is parked, too."""

    def catch(self, block: int, key: BlockKey) -> None:
        if not self.forgets:
            super().catch(block, key)


class KeepsTheHost(HostLayer):
    """Lets the layer beneath forget, and not itself."""

    def forget_all(self, inner: SupportsForgetting) -> int:
        return inner.forget()


HOST_MUTANTS = [
    (LosesWhatIsAwaited, "test_what_is_parked_survives_forgetting"),
    (KeepsTheHost, "test_the_host_forgets_too"),
    (NoSlots, "test_abilities_are_shown"),
    (CopiesAcross, "test_a_parked_table_comes_back_with_its_content"),
    (NeverFills, "test_a_parked_table_comes_back_with_its_content"),
    (GroupsCopies, "test_copies_keep_their_order"),
    (FindsWhatItCaches, "test_what_is_parked_is_found"),
    (WantsAll, "test_swap_in_takes_what_find_says"),
    (ComesBackPrivate, "test_what_comes_back_is_on_the_device"),
    (GivesAtOnce, "test_swap_out_gives_nothing_back"),
    (KeepsTickets, "test_swap_in_drops_the_ticket"),
    (NeverDrops, "test_drop_frees_the_host"),
    (DropsForAll, "test_a_dropped_ticket_leaves_the_others"),
    (OwnSlots, "test_siblings_park_equal_keys_once"),
    (AlwaysCopies, "test_what_stays_is_not_copied"),
    (UnpinsEarly, "test_a_slot_is_read_before_it_is_used_again"),
    (BelievesHostMatches, "test_a_stale_host_match_is_refused"),
    (RemembersBlocks, "test_every_request_reads_its_own_tokens"),
    (Searches, "test_the_cost_of_a_block_does_not_grow_with_the_pool"),
    (NeverUnpins, "test_what_was_held_makes_room"),
    (FreeSlotsOnly, "test_what_nobody_parked_makes_room"),
    (CountsNoCache, "test_counts_of_the_host_are_true"),
    (PushesOut, "test_a_full_host_refuses_and_changes_nothing"),
    (DropsRefused, "test_no_room_on_the_device_keeps_the_ticket"),
    (HoldsBeforeItRefuses, "test_a_refused_return_holds_nothing"),
    (TakesFirst, "test_a_match_is_pinned_before_anything_is_taken"),
]

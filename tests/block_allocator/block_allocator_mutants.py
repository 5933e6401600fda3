"""Plausibly broken layers, each with the law of the kit that must catch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from counting_layer import Counting
from host_layer import HostLayer

from corekit.api import AllocatorStats, BlockAllocator, BlockKey, BlockRef, Blocks, CachedBlock, PrefixMatch, PrefixQuery, Provider, Ticket
from corekit.builtin.free_list import FreeList
from corekit.testing.prefix_cache import PlainPrefixCache

# Bottoms


class FromZero(FreeList):
    """Hands out the null block."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._next = 0
        self._num_blocks -= 1


class KeepsOne(FreeList):
    """Off by one: the last block cannot be taken."""

    def take(self, count: int) -> Blocks | None:
        return None if count >= self.available and count > 1 else super().take(count)


class Greedy(FreeList):
    """Takes what is there before it sees that it is not enough."""

    def take(self, count: int) -> Blocks | None:
        if count > self.available:
            self._given.clear()
            self._next = self._num_blocks + 1
            return None
        return super().take(count)


class Forgets(FreeList):
    """A slip in give: of a table only the first block comes back."""

    def give(self, blocks: Blocks) -> None:
        super().give(Blocks(blocks.ids[:1]))


class CountsAll(FreeList):
    def stats(self) -> AllocatorStats:
        return AllocatorStats(num_free=self._num_blocks)


class Sorts(FreeList):
    """Hands out low blocks first, by sorting."""

    def take(self, count: int) -> Blocks | None:
        self._given.sort(reverse=True)
        return super().take(count)


class Twice(FreeList):
    """A long table is put back twice."""

    def give(self, blocks: Blocks) -> None:
        super().give(blocks if len(blocks.ids) < 4 else Blocks(blocks.ids + blocks.ids[:1]))


class CountsGives(FreeList):
    """Keeps a count for its audit, and forgets empty-handed takes and long gives."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.num_used = 0

    def take(self, count: int) -> Blocks | None:
        taken = super().take(count)
        self.num_used += len(taken.ids) if taken else 0
        return taken

    def give(self, blocks: Blocks) -> None:
        super().give(blocks)
        self.num_used -= min(3, len(blocks.ids))

    def audit(self) -> list[str]:
        return [f"{self.num_used} blocks are used"] if self.num_used else []


# Layers


class NoInner(Counting):
    """Keeps the layer beneath under a name of its own, so that nobody else finds it."""

    def __init__(self, inner: BlockAllocator) -> None:
        self._below = inner

    @property
    def prefix_cache(self) -> bool:
        return getattr(self._below, "prefix_cache", False)

    @property
    def available(self) -> int:
        return self._below.available

    def take(self, count: int) -> Blocks | None:
        return self._below.take(count)

    def give(self, blocks: Blocks) -> None:
        self._below.give(blocks)


class HidesCache(Counting):
    prefix_cache = False  # type: ignore[assignment]


class HidesSwap(Counting):
    """Fit for a stack that swaps nothing, and put above one that does."""


class Backwards(Counting):
    def give(self, blocks: Blocks) -> None:
        self.inner.give(Blocks(blocks.ids[::-1]))


# Prefix caches


class ByTokens(PlainPrefixCache):
    """A key without its parent: blocks of equal tokens are taken for one."""

    def find(self, query: PrefixQuery) -> PrefixMatch:
        by_tokens = {key.tokens: key for key in self._block_of}
        match = super().find(PrefixQuery([by_tokens.get(key.tokens, key) for key in query.keys]))
        return PrefixMatch(tuple(CachedBlock(key, c.place) for key, c in zip(query.keys, match.blocks, strict=False)), match.num_taken)

    def hold(self, match: PrefixMatch) -> Blocks | None:
        by_tokens = {key.tokens: key for key in self._block_of}
        return super().hold(PrefixMatch(tuple(CachedBlock(by_tokens.get(c.key.tokens, c.key), c.place) for c in match.blocks), match.num_taken))


class FoundLater(PlainPrefixCache):
    """A block can be found only once it was given back."""

    def find(self, query: PrefixQuery) -> PrefixMatch:
        idle = [key for key in query.keys if self._block_of.get(key) in self._idle]
        return super().find(PrefixQuery(idle if idle == list(query.keys[: len(idle)]) else ()))


class RootsOnly(PlainPrefixCache):
    """Takes the first key of a query for the root of its chain."""

    def find(self, query: PrefixQuery) -> PrefixMatch:
        return super().find(query) if query.keys and query.keys[0].parent is None else PrefixMatch()


class Touches(PlainPrefixCache):
    """Least recently looked for, instead of least recently used."""

    def find(self, query: PrefixQuery) -> PrefixMatch:
        match = super().find(query)
        for cached in match.blocks:
            if cached.place.block in self._idle:
                self._idle.move_to_end(cached.place.block)
        return match


class FindHolds(PlainPrefixCache):
    """find takes the blocks out of the idle ones, so that nobody evicts them meanwhile."""

    def find(self, query: PrefixQuery) -> PrefixMatch:
        match = super().find(query)
        for cached in match.blocks:
            self._idle.pop(cached.place.block, None)
        return match


class RootsFirst(PlainPrefixCache):
    """Evicts in table order: what is left of a prefix cannot be reached."""

    def give(self, blocks: Blocks) -> None:
        super().give(Blocks(blocks.ids[::-1]))


class IdleFirst(PlainPrefixCache):
    """Free blocks are kept for later."""

    def take(self, count: int) -> Blocks | None:
        while self._idle:
            self.inner.give(Blocks((self._evict(),)))
        return self.inner.take(count)


class ByHash(PlainPrefixCache):
    """Trusts the hash."""

    def find(self, query: PrefixQuery) -> PrefixMatch:
        by_hash = {key.hash: key for key in self._block_of}
        match = super().find(PrefixQuery([by_hash.get(key.hash, key) for key in query.keys]))
        return PrefixMatch(tuple(CachedBlock(key, c.place) for key, c in zip(query.keys, match.blocks, strict=False)), match.num_taken)


class LastWins(PlainPrefixCache):
    """The newest block of a key takes it over."""

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        old = self._block_of.pop(key, None)
        if old is not None:
            del self._key_of[old]
        return super().publish(block, key)


class HoldsLoosely(PlainPrefixCache):
    """What is held stays in the list of idle blocks."""

    def hold(self, match: PrefixMatch) -> Blocks | None:
        return Blocks(tuple(cached.place.block for cached in match.blocks))


class CountsAllOfAMatch(PlainPrefixCache):
    def find(self, query: PrefixQuery) -> PrefixMatch:
        match = super().find(query)
        return PrefixMatch(match.blocks, len(match.blocks))


class BelievesMatches(PlainPrefixCache):
    """hold does not look whether the match is still true."""

    def hold(self, match: PrefixMatch) -> Blocks | None:
        for cached in match.blocks:
            self._idle.pop(cached.place.block, None)
        return Blocks(tuple(cached.place.block for cached in match.blocks))


class KeepsOldKeys(PlainPrefixCache):
    """An evicted block is still found by the key it had."""

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        self._key_of.pop(block)
        return block


class HoldsIdleOnly(PlainPrefixCache):
    """hold answers with the blocks whose state it changed."""

    def hold(self, match: PrefixMatch) -> Blocks | None:
        idle = [cached for cached in match.blocks if cached.place.block in self._idle]
        return super().hold(PrefixMatch(tuple(idle)))


class SilentEviction(PlainPrefixCache):
    """Tells its sink of an eviction only when somebody gives the block back."""

    def set_sink(self, sink: Callable[[int, BlockKey], None]) -> None:
        pass


# Host layers


class GivesAtOnce(HostLayer):
    def swap_out(self, blocks: Blocks, keys: Any) -> Ticket | None:
        ticket = super().swap_out(blocks, keys)
        if ticket is not None:
            self.give(blocks)
        return ticket


class KeepsTickets(HostLayer):
    """swap_in leaves the ticket to a drop that never comes."""

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        taken = self.inner.take(len(ticket.slots))
        for block, slot in zip(taken.ids if taken else (), ticket.slots, strict=False):
            self.journal.copy(BlockRef(slot, True), BlockRef(block))
        return taken


class NeverDrops(HostLayer):
    def swap_in(self, ticket: Ticket) -> Blocks | None:
        taken = super().swap_in(ticket)
        if taken is not None:
            super().drop(ticket)
        return taken

    def drop(self, ticket: Ticket) -> None:
        pass


class PushesOut(HostLayer):
    """A full host loses what was parked first."""

    def claim(self, key: BlockKey | None) -> int:
        if not self.free and not self.cached:
            return next(iter(self.refs))
        return super().claim(key)

    def swap_out(self, blocks: Blocks, keys: Any) -> Ticket | None:
        slots = [self.claim(None) for _ in blocks.ids]
        for block, slot in zip(blocks.ids, slots, strict=True):
            self.journal.copy(BlockRef(block), BlockRef(slot, True))
            self.pin(slot)
        return Ticket(tuple(slots))


class DropsRefused(HostLayer):
    """A ticket that finds no room is gone."""

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        if len(ticket.slots) > self.available:
            self.drop(ticket)
            return None
        if any(not self.refs[slot] for slot in ticket.slots):
            return None
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


class CopiesAcross(HostLayer):
    """Blocks come back in another order than they were parked."""

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        return super().swap_in(Ticket(ticket.slots[::-1]))


class NoSlots(HostLayer):
    """Its number of host blocks is rounded down to nothing."""

    def __init__(self, inner: BlockAllocator, journal: Any, num_host_blocks: int) -> None:
        super().__init__(inner, journal, 0)


@dataclass(frozen=True)
class Mutant:
    part: type
    law: str

    @property
    def kit(self) -> str:
        """Which stack it is tried on."""
        if self.part is HidesSwap:
            return "above"
        return next(
            name for name, kind in (("bottom", FreeList), ("layer", Counting), ("cache", PlainPrefixCache), ("host", HostLayer)) if issubclass(self.part, kind)
        )

    @property
    def provider(self) -> Provider[Any]:
        def build(context: Any, options: None) -> Any:
            if self.kit == "bottom":
                return self.part(context.num_blocks)
            return self.part(context.inner, context.journal, 6) if self.kit == "host" else self.part(context.inner)

        return Provider(name="mutant", api=1, summary="a planted fault for the kit to find", build=build)


MUTANTS = [
    Mutant(FromZero, "test_the_whole_pool_is_handed_out_and_nothing_else"),
    Mutant(KeepsOne, "test_available_is_exact"),
    Mutant(Greedy, "test_a_refusal_changes_nothing"),
    Mutant(Forgets, "test_what_is_given_comes_back"),
    Mutant(CountsAll, "test_stats_add_up"),
    Mutant(Sorts, "test_the_cost_of_a_block_does_not_grow_with_the_pool"),
    Mutant(Twice, "test_walks_agree_with_the_model"),
    Mutant(CountsGives, "test_everything_is_back_at_the_end"),
    Mutant(NoInner, "test_a_layer_stands_on_the_one_beneath"),
    Mutant(HidesCache, "test_a_layer_passes_on_the_prefix_cache"),
    Mutant(HidesSwap, "test_a_layer_passes_on_swapping"),
    Mutant(Backwards, "test_order_of_a_given_table_is_kept"),
    Mutant(ByTokens, "test_the_engine_answers_the_same"),
    Mutant(FoundLater, "test_what_is_published_is_found"),
    Mutant(RootsOnly, "test_find_starts_anywhere_and_stops_at_a_gap"),
    Mutant(Touches, "test_find_disturbs_no_order"),
    Mutant(FindHolds, "test_find_takes_nothing"),
    Mutant(RootsFirst, "test_leaves_go_before_their_parents"),
    Mutant(IdleFirst, "test_nothing_is_evicted_without_need"),
    Mutant(ByHash, "test_keys_are_compared_by_identity"),
    Mutant(LastWins, "test_a_second_block_of_a_key_stays_private"),
    Mutant(HoldsLoosely, "test_what_is_held_is_used"),
    Mutant(CountsAllOfAMatch, "test_num_taken_is_exact"),
    Mutant(BelievesMatches, "test_a_stale_match_is_refused"),
    Mutant(KeepsOldKeys, "test_a_reused_block_is_not_found"),
    Mutant(HoldsIdleOnly, "test_blocks_in_use_keep_their_key"),
    Mutant(SilentEviction, "test_the_sink_hears_of_every_eviction"),
    Mutant(CopiesAcross, "test_a_parked_table_comes_back_with_its_content"),
    Mutant(GivesAtOnce, "test_swap_out_gives_nothing_back"),
    Mutant(KeepsTickets, "test_swap_in_drops_the_ticket"),
    Mutant(NeverDrops, "test_drop_frees_the_host"),
    Mutant(PushesOut, "test_a_full_host_refuses_and_changes_nothing"),
    Mutant(DropsRefused, "test_no_room_on_the_device_keeps_the_ticket"),
    Mutant(TakesFirst, "test_a_match_is_pinned_before_anything_is_taken"),
    Mutant(NoSlots, "test_abilities_are_shown"),
]

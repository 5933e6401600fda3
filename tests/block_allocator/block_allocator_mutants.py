"""Plausibly broken layers, each with the law of the kit that must catch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from counting_layer import Counting
from host_layer import HostLayer
from host_mutants import HOST_MUTANTS

from corekit.api import AllocatorStats, BlockAllocator, BlockKey, Blocks, CachedBlock, PrefixMatch, PrefixQuery, Provider
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


class DropsRetention(Counting):
    """Written when publish had two arguments."""

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return bool(self.inner.publish(block, key))


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
        if self._block_of.get(key, block) != block:
            self._forget(self._block_of[key])
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


class ByFields(PlainPrefixCache):
    """Takes keys for one that agree in hash, parent and tokens, and forgets that there are groups."""

    def find(self, query: PrefixQuery) -> PrefixMatch:
        known = {(key.hash, key.tokens): key for key in self._block_of}
        keys = [known.get((key.hash, key.tokens), key) for key in query.keys]
        match = super().find(PrefixQuery(keys, keys[0].group if keys else 0))
        return PrefixMatch(tuple(CachedBlock(key, c.place) for key, c in zip(query.keys, match.blocks, strict=False)), match.num_taken)


class Once(PlainPrefixCache):
    """A key that is there already is refused, whoever holds it."""

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return key not in self._block_of and super().publish(block, key, retain_until)


class Locks(PlainPrefixCache):
    """What is retained is nobody else's until then."""

    @property
    def available(self) -> int:
        return super().available - len(self._until)


class RetainsNothing(PlainPrefixCache):
    """Counts what is to be retained, and evicts as ever."""

    def _evict(self) -> int:
        until, self._until = self._until, {}
        block = super()._evict()
        until.pop(block, None)
        self._until = until
        return block


class LastWordCounts(PlainPrefixCache):
    """The newest wish replaces the one before."""

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        if self._block_of.get(key) == block:
            self._until.pop(block, None)
        return super().publish(block, key, retain_until)


class NeverEnds(PlainPrefixCache):
    """Looks at a clock of its own."""

    def __init__(self, inner: BlockAllocator) -> None:
        super().__init__(inner)


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
            if self.kit == "host":
                return self.part(context.inner, context.journal, 6)
            return self.part(context.inner, context.clock) if self.kit == "cache" and self.part is not NeverEnds else self.part(context.inner)

        return Provider(name="mutant", api=1, summary="a planted fault for the kit to find", build=build)


MUTANTS = [
    Mutant(FromZero, "test_the_whole_pool_is_handed_out_and_nothing_else"),
    Mutant(KeepsOne, "test_available_is_exact"),
    Mutant(Greedy, "test_a_refusal_changes_nothing"),
    Mutant(Forgets, "test_what_is_given_comes_back"),
    Mutant(CountsAll, "test_stats_add_up"),
    Mutant(Sorts, "test_the_cost_of_a_block_does_not_grow_with_the_pool"),
    Mutant(Twice, "test_every_request_reads_its_own_tokens"),
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
    Mutant(Once, "test_a_block_is_published_again"),
    Mutant(ByFields, "test_groups_are_apart"),
    Mutant(DropsRetention, "test_a_layer_passes_on_retention"),
    Mutant(Locks, "test_retention_blocks_nothing"),
    Mutant(RetainsNothing, "test_what_is_retained_goes_last"),
    Mutant(LastWordCounts, "test_a_retention_grows_and_never_shrinks"),
    Mutant(NeverEnds, "test_a_retention_ends"),
    *(Mutant(part, law) for part, law in HOST_MUTANTS),
]

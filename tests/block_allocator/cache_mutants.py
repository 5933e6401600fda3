"""Plausibly broken prefix caches, each with the law of the kit that must catch it."""

from __future__ import annotations

from collections.abc import Callable

from corekit.api import BlockAllocator, BlockKey, Blocks, CachedBlock, PrefixMatch, PrefixQuery
from corekit.testing.prefix_cache import PlainPrefixCache


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


class RetainsItsOwn(PlainPrefixCache):
    """What another block holds already is not retained."""

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return self._block_of.get(key, block) == block and super().publish(block, key, retain_until)


class NeverEnds(PlainPrefixCache):
    """Looks at a clock of its own."""

    def __init__(self, inner: BlockAllocator, clock: Callable[[], float]) -> None:
        super().__init__(inner)


class ForgetsTheIdle(PlainPrefixCache):
    """What is used keeps its key."""

    def forget(self) -> int:
        used = {block: key for block, key in self._key_of.items() if block not in self._idle}
        count = super().forget()
        self._key_of, self._block_of = used, {key: block for block, key in used.items()}
        return count


class ForgetsInSilence(PlainPrefixCache):
    """Nobody is told, since nothing was evicted."""

    def forget(self) -> int:
        sink, self._sink = self._sink, None
        count = super().forget()
        self._sink = sink
        return count


CACHE_MUTANTS = [
    (ForgetsTheIdle, "test_what_is_forgotten_is_not_found"),
    (ForgetsInSilence, "test_the_sink_hears_what_is_forgotten"),
    (ByTokens, "test_the_engine_answers_the_same"),
    (FoundLater, "test_what_is_published_is_found"),
    (RootsOnly, "test_find_starts_anywhere_and_stops_at_a_gap"),
    (Touches, "test_find_disturbs_no_order"),
    (FindHolds, "test_find_takes_nothing"),
    (RootsFirst, "test_leaves_go_before_their_parents"),
    (IdleFirst, "test_nothing_is_evicted_without_need"),
    (ByHash, "test_keys_are_compared_by_identity"),
    (LastWins, "test_a_second_block_of_a_key_stays_private"),
    (HoldsLoosely, "test_what_is_held_is_used"),
    (CountsAllOfAMatch, "test_num_taken_is_exact"),
    (BelievesMatches, "test_a_stale_match_is_refused"),
    (KeepsOldKeys, "test_a_reused_block_is_not_found"),
    (HoldsIdleOnly, "test_blocks_in_use_keep_their_key"),
    (SilentEviction, "test_the_sink_hears_of_every_eviction"),
    (Once, "test_a_block_is_published_again"),
    (ByFields, "test_groups_are_apart"),
    (Locks, "test_retention_blocks_nothing"),
    (RetainsNothing, "test_what_is_retained_goes_last"),
    (LastWordCounts, "test_a_retention_grows_and_never_shrinks"),
    (RetainsItsOwn, "test_the_key_is_retained_whoever_holds_it"),
    (NeverEnds, "test_a_retention_ends"),
]

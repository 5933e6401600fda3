"""Broken copies of lru-prefix: each does one thing wrong that only its own promises see, and no law of every stack does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corekit_lru_prefix.layer import MAX_EXPIRED, LruPrefix

from corekit.api import BlockKey, Blocks, PrefixMatch, PrefixQuery


class ParentsFirst(LruPrefix):
    """A table that was given back is evicted from its head."""

    def give(self, blocks: Blocks) -> None:
        super().give(Blocks(blocks.ids[::-1]))


class YoungestFirst(LruPrefix):
    """What was used last goes first."""

    def give(self, blocks: Blocks) -> None:
        super().give(blocks)
        for block in blocks.ids:
            if (key := self._key_of.get(block)) in self._idle:
                self._idle.move_to_end(key, last=False)  # type: ignore[arg-type]


class FirstInFirstOut(LruPrefix):
    """The order is that of publishing: being used again counts for nothing."""

    def give(self, blocks: Blocks) -> None:
        super().give(blocks)
        for key in [key for key in self._found if key in self._idle]:
            self._idle.move_to_end(key)


class FindIsUse(LruPrefix):
    """Looking a prefix up makes it younger."""

    def find(self, query: PrefixQuery) -> PrefixMatch:
        match = super().find(query)
        for cached in match.blocks:
            if cached.key in self._idle:
                self._idle.move_to_end(cached.key)
        return match


class RetainsNothing(LruPrefix):
    def _retain(self, key: BlockKey, until: float) -> None: ...


class RetainsForEver(LruPrefix):
    """A deadline that passes frees nothing."""

    def _ripen(self, asked: int) -> None: ...


class RetainsWithoutBound(LruPrefix):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._retention.most = 1_000


class Shortens(LruPrefix):
    """Whoever asks last decides, even for less."""

    def _retain(self, key: BlockKey, until: float) -> None:
        self._retention.forget(key)
        super()._retain(key, until)


class KeepsExpiredAtTheBound(LruPrefix):
    """Deadlines that have passed still count against the bound."""

    def _retain(self, key: BlockKey, until: float) -> None:
        if key in self._retention.keys or not self._retention.full():
            self._retention.prolong(key, until)


class ExpiredAreYoung(LruPrefix):
    """A block whose retention is over starts again behind all others."""

    def _ripen(self, asked: int) -> None:
        for key in self._retention.expire(asked + MAX_EXPIRED):
            if key in self._aside:
                self._lay(key, self._aside.pop(key))


class ExpiredGoFirst(LruPrefix):
    """A block whose retention is over goes before those that were used before it."""

    def _ripen(self, asked: int) -> None:
        super()._ripen(asked)
        for key in self._ripe.keys:
            self._ripe.put(key, self._numbers[self._aside[key]] - 1e9)


class ExpiredGoLast(LruPrefix):
    """A block whose retention is over goes when no other is left, though not after those that are retained."""

    def _lay(self, key: BlockKey, block: int) -> None:
        super()._lay(key, block)
        if key in self._idle:
            del self._numbers[block]


class ExpiredInOrderOfDeadline(LruPrefix):
    """Those whose retention is over go in the order in which it ended."""

    def _ripen(self, asked: int) -> None:
        for key in self._retention.expire(asked + MAX_EXPIRED):
            if key in self._aside:
                self._ripe.put(key, next(self._next_number) - 1e9)


class RetainedForSure(LruPrefix):
    """Retained blocks are never evicted, though `available` counts them."""

    def take(self, count: int) -> Blocks | None:
        return None if count > self.available - len(self._retention.keys & {*self._idle, *self._aside}) else super().take(count)


class RetainedByDeadline(LruPrefix):
    """When only retained blocks are left, the youngest of them goes first."""

    def _oldest(self) -> tuple[BlockKey, int]:
        if self._aside and not self._idle and not self._ripe.keys:
            key, block = self._aside.popitem()
            self._retention.forget(key)
            return key, block
        return super()._oldest()


class ForgetsOnUse(LruPrefix):
    """A retention ends when the block is used again."""

    def hold(self, match: PrefixMatch) -> Blocks | None:
        for cached in match.blocks:
            self._retention.forget(cached.key)
        return super().hold(match)


class OwnKeyIsForeign(LruPrefix):
    """A block that is published again under its own key is told that another holds it."""

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return key not in self._found and super().publish(block, key, retain_until)


class SilentEviction(LruPrefix):
    """The layer above never hears what is evicted."""

    def set_sink(self, sink: Callable[[int, BlockKey], None]) -> None: ...


MUTANTS = (
    ParentsFirst,
    YoungestFirst,
    FirstInFirstOut,
    FindIsUse,
    RetainsNothing,
    RetainsForEver,
    RetainsWithoutBound,
    Shortens,
    KeepsExpiredAtTheBound,
    ExpiredAreYoung,
    ExpiredGoFirst,
    ExpiredGoLast,
    ExpiredInOrderOfDeadline,
    RetainedForSure,
    RetainedByDeadline,
    ForgetsOnUse,
    OwnKeyIsForeign,
    SilentEviction,
)

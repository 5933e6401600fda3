"""Forbids the last id of an n-gram that the answer holds already. Knows ids; nothing of prompts, text or logits."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import NewSample, RowProcessor


class Ngrams:
    """One sample's answer. `_after` holds, for each n-1 ids in a row, those that came after them, oldest first."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._ids: list[int] = []
        self._after: dict[tuple[int, ...], list[int]] = {}

    def accept(self, token_ids: Sequence[int]) -> None:
        for id in token_ids:
            if (before := self._last()) is not None:
                self._after.setdefault(before, []).append(id)
            self._ids.append(id)

    def rollback(self, count: int) -> None:
        for _ in range(count):
            self._ids.pop()
            if (before := self._last()) is not None:
                self._after[before].pop()

    def fill(self, mask_row: memoryview) -> None:
        before = self._last()
        for id in self._after.get(before, ()) if before is not None else ():
            mask_row[id // 32] &= ~(1 << id % 32)

    def _last(self) -> tuple[int, ...] | None:
        """The last n-1 ids; None while there are fewer."""
        return tuple(self._ids[1 - self._n :]) if len(self._ids) >= self._n - 1 else None


class NgramGuard:
    """Every sample has a guard of its own, so siblings and neighbours may say the same."""

    def __init__(self, n: int) -> None:
        self._n = n

    def start(self, sample: NewSample) -> RowProcessor | None:
        return Ngrams(self._n)

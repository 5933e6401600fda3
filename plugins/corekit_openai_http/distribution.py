"""How often a value lay between which bounds: cheap to add to, and read by whoever asks. Knows no names and no text form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from corekit.api import Durations


class Distribution:
    """A histogram of values. Invariant: one thread adds to it, without a lock; any other may read, and never sees a count go back."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """So many values that are alike. A value on a bound lies below it."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def seen(self) -> Durations:
        return Durations(bounds=self._bounds, counts=tuple(self._counts), sum=self._sum)

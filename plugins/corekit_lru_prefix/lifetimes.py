"""How long blocks stay findable and how soon they are used again, seen on a sample of them. Knows keys and a clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from random import Random
from typing import Final

from corekit.api import BlockKey, Durations

BOUNDS: Final = tuple(0.001 * 4**power for power in range(13))
"""Seconds, from a millisecond to four and a half hours."""


class Histogram:
    """Durations that grow. The frozen ones are made when somebody looks after something was added."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0
        self._seen: Durations | None = None

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds
        self._seen = None

    @property
    def durations(self) -> Durations:
        if self._seen is None:
            self._seen = Durations(bounds=BOUNDS, counts=tuple(self._counts), sum=self._sum)
        return self._seen


class _Life:
    """When a watched block was published, and last used."""

    __slots__ = ("published", "used")

    def __init__(self, now: float) -> None:
        self.published = self.used = now


class Lifetimes:
    """One published block in `every` is watched, at gaps drawn from a seed so that no rhythm of requests hides the others. 0: none.

    Only watched keys cost a clock call; who calls asks `key in watched` first.
    """

    def __init__(self, every: int, clock: Callable[[], float], seed: int) -> None:
        self.watched: dict[BlockKey, _Life] = {}
        self.residency, self.idle_before_evict, self.reuse_gap = Histogram(), Histogram(), Histogram()
        self._every = every
        self._clock = clock
        self._random = Random(seed)

    def gap(self) -> int:
        """How many blocks are published until one is watched again."""
        return self._random.randint(1, 2 * self._every - 1)

    def watch(self, key: BlockKey) -> None:
        self.watched[key] = _Life(self._clock())

    def given(self, key: BlockKey) -> None:
        """Its last user is gone."""
        self.watched[key].used = self._clock()

    def held(self, key: BlockKey) -> None:
        """It was idle, and has a user again."""
        self.reuse_gap.add(self._clock() - self.watched[key].used)

    def evicted(self, key: BlockKey) -> None:
        life, now = self.watched.pop(key), self._clock()
        self.residency.add(now - life.published)
        self.idle_before_evict.add(now - life.used)

"""Until when which keys are to be kept: a bounded number of deadlines. Knows neither blocks nor who is idle."""

from __future__ import annotations

from collections.abc import Callable, KeysView

from corekit.api import BlockKey

from .ranking import Ranking


class Retention:
    """Invariant: at most `most` keys have a deadline. One that has passed stays until `expire` comes to it, the earliest first."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.most = most
        self._clock = clock
        self._deadlines = Ranking()
        self.keys: KeysView[BlockKey] = self._deadlines.keys
        """Those that have a deadline; it changes with them."""

    def full(self) -> bool:
        return len(self.keys) >= self.most

    def prolong(self, key: BlockKey, until: float) -> None:
        """Keep the key until then, or longer if that was asked for before. A new key must find room."""
        known = self._deadlines.rank(key)
        if known is None or known < until:
            self._deadlines.put(key, until)

    def forget(self, key: BlockKey) -> None:
        self._deadlines.remove(key)

    def expire(self, most: int) -> list[BlockKey]:
        """Drop so many of the deadlines that have passed; whose they were. Asks the clock only while something is retained."""
        if not self.keys:
            return []
        now, passed = self._clock(), list[BlockKey]()
        while len(passed) < most and self.keys:
            until, key = self._deadlines.first
            if until > now:
                break
            self._deadlines.remove(key)
            passed.append(key)
        return passed

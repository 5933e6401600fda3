"""Until when which keys are to be kept: a bounded number of deadlines. Knows neither blocks nor who is idle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from itertools import count

from corekit.api import BlockKey


class Retention:
    """Invariant: at most `most` keys have a deadline, and each of them an entry in the heap that is not later than it."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.most = most
        self._clock = clock
        self._until: dict[BlockKey, float] = {}
        self._heap: list[tuple[float, int, BlockKey]] = []
        self._number = count()  # so that equal deadlines compare no keys

    @property
    def until(self) -> Mapping[BlockKey, float]:
        """The deadline of each retained key; those that have passed may still be there until `expire`."""
        return self._until

    def full(self) -> bool:
        return len(self._until) >= self.most

    def prolong(self, key: BlockKey, until: float) -> None:
        """Keep the key until then, or longer if that was asked for before. A new key must find room."""
        known = self._until.get(key)
        if known is not None:
            self._until[key] = max(known, until)  # its entry in the heap moves when it comes up
            return
        self._until[key] = until
        if len(self._heap) > 2 * len(self._until) + 64:  # most are of forgotten keys
            self._heap = [(deadline, next(self._number), kept) for kept, deadline in self._until.items()]
            heapify(self._heap)
        else:
            heappush(self._heap, (until, next(self._number), key))

    def forget(self, key: BlockKey) -> None:
        self._until.pop(key, None)

    def expire(self) -> list[BlockKey]:
        """Drop the deadlines that have passed; whose they were. Asks the clock only while something is retained."""
        if not self._until:
            return []
        now, passed, heap = self._clock(), [], self._heap
        while heap and heap[0][0] <= now:
            key = heappop(heap)[2]
            until = self._until.get(key)
            if until is None:
                continue
            if until > now:
                heappush(heap, (until, next(self._number), key))
            else:
                del self._until[key]
                passed.append(key)
        return passed

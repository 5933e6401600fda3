"""Python's garbage collector, owned by the engine: no full collection while steps run. Knows nothing of requests.

A full collection walks every object that survived, which takes 100 ms and more with thousands of requests; young
collections stay on, so short-lived cycles are freed as ever.
"""

from __future__ import annotations

import gc
import threading

NEVER = 2**31 - 1


class Collector:
    """Invariant: between `start` and `close` full collections happen in `idle` only; afterwards the process is as before.

    The collector belongs to the whole process: of several owners the first one rules and the others do nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._previous: tuple[int, int, int] | None = None
        self._seen = 0

    def start(self) -> None:
        """Put what assembly made out of the collector's sight."""
        with self._lock:
            young, middle, old = gc.get_threshold()
            if self._previous is not None or old == NEVER:
                return
            self._previous = young, middle, old
            gc.collect()
            gc.freeze()
            gc.set_threshold(young, middle, NEVER)
            self._seen = self._num_middle()

    def idle(self) -> None:
        """Nothing runs: the time for a full collection, if there was enough work since the last one."""
        with self._lock:
            if self._previous is not None and self._num_middle() - self._seen >= max(1, self._previous[2]):
                gc.collect()
                self._seen = self._num_middle()

    def close(self) -> None:
        """Restore what was found. May be called twice."""
        with self._lock:
            if self._previous is not None:
                gc.set_threshold(*self._previous)
                gc.unfreeze()
                self._previous = None

    @staticmethod
    def _num_middle() -> int:
        """Collections of the middle generation so far: what Python itself counts to decide about a full one."""
        collections: int = gc.get_stats()[1]["collections"]
        return collections

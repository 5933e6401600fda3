"""Python's garbage collector, owned by the engine: full collections wait until it is idle. Knows nothing of requests.

A full collection walks every object that survived, which takes 100 ms and more with thousands of requests; young
collections stay on, so short-lived cycles are freed as ever. An engine that is never idle pays for one between two steps
when much has been made since the last one, which bounds the garbage, or when it is long ago, which bounds its age.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

NEVER = 2**31 - 1
MUCH = 50
"""Times the work after which Python itself would look at everything: with its own thresholds 3.5 million more objects made than freed."""
LONG = 60.0
"""Seconds; at that rate a collection of 100 ms costs less than a fifth of a percent."""


class Collector:
    """Invariant: between `start` and `close` full collections happen in the calls below only, never during a step; afterwards
    the process is as before.

    The collector belongs to the whole process: of several owners the first one rules and the others do nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._previous: tuple[int, int, int] | None = None
        self._seen = 0
        self._seen_young = 0
        self._last = 0.0

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
            self._note()

    def idle(self) -> None:
        """Nothing runs: the time for a full collection, if there was enough work since the last one."""
        with self._lock:
            if self._work() >= 1:
                self._collect()

    def rest(self) -> None:
        """The engine has been idle for seconds: a full collection if anything was made since. A few objects can hold much memory."""
        with self._lock:
            if self._previous is not None and self._num_collections(0) != self._seen_young:
                self._collect()

    def between_steps(self) -> None:
        """Something waits: a full collection only if it cannot wait for `idle` any longer."""
        with self._lock:
            work = self._work()
            if work >= MUCH or (work >= 1 and self._clock() - self._last >= LONG):
                self._collect()

    def close(self) -> None:
        """Restore what was found. May be called twice."""
        with self._lock:
            if self._previous is not None:
                gc.set_threshold(*self._previous)
                gc.unfreeze()
                self._previous = None

    def _work(self) -> float:
        """Since the last full collection; 1 is where Python itself would make one."""
        return 0 if self._previous is None else (self._num_collections(1) - self._seen) / max(1, self._previous[2])

    def _collect(self) -> None:
        gc.collect()
        self._note()

    def _note(self) -> None:
        self._seen, self._seen_young, self._last = self._num_collections(1), self._num_collections(0), self._clock()

    @staticmethod
    def _num_collections(generation: int) -> int:
        """Collections of a generation so far; those of the middle one are what Python itself counts to decide about a full one."""
        collections: int = gc.get_stats()[generation]["collections"]
        return collections

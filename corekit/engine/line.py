"""Callers that wait for room in the queue, first come first served. Knows event loops; not what there must be room for."""

from __future__ import annotations

import asyncio
from collections import deque


class Place:
    """Where one caller stands. Waits and clears on its own event loop; may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._called = asyncio.Event()

    def call(self) -> bool:
        """Have the caller look again. False: its event loop was closed, so nobody will."""
        try:
            self._loop.call_soon_threadsafe(self._called.set)
        except RuntimeError:
            return False
        return True

    async def wait(self) -> None:
        await self._called.wait()
        self._called.clear()


class Line:
    """Guarded by its owner's lock.

    Invariant: only the first of the line is called, so a request that needs much room is not overtaken by those that need
    little, and the others cost nothing while they wait.
    """

    def __init__(self) -> None:
        self._places: deque[Place] = deque()

    def enter(self) -> Place:
        """A place at the end; called at once if there is nobody before it."""
        place = Place()
        self._places.append(place)
        if self._places[0] is place:
            place.call()
        return place

    def leave(self, place: Place) -> None:
        """Any number of times. Whoever is first now is called."""
        if place in self._places:
            self._places.remove(place)
            self.call()

    def call(self) -> None:
        """There may be room: the first shall look."""
        while self._places and not self._places[0].call():
            self._places.popleft()

    def call_all(self) -> None:
        """There will be no room any more."""
        for place in self._places:
            place.call()

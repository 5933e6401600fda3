"""How late the event loop is: what every connection feels when something holds it up. Knows nothing of requests."""

from __future__ import annotations

import asyncio
from collections import deque

EVERY_SECONDS = 0.25
_NUM_KEPT = 60


class LoopLag:
    """The worst of the last quarter of a minute, so that no scrape misses it."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque([0.0], maxlen=_NUM_KEPT)

    def worst(self) -> float:
        return max(self._seen)

    async def watch(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_SECONDS
            await asyncio.sleep(EVERY_SECONDS)
            self._seen.append(max(0.0, loop.time() - due))

"""One wish to drop the prefix cache, and whoever waits for its answer. Knows event loops; nothing of blocks."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Reset:
    """Made on the loop of whoever waits. The first answer counts, and comes from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[int] = self._loop.create_future()

    def hear(self, result: int | Exception) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._settle, result)

    def _settle(self, result: int | Exception) -> None:
        if self.answer.done():
            return
        if isinstance(result, Exception):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)

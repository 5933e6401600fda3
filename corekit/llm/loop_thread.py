"""An event loop in a thread of its own, for callers that have none. Knows nothing of what runs on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from corekit.api import EngineDead

T = TypeVar("T")
ENDING = 10.0
"""Seconds that an interrupted call waits for its requests to end; a step that takes longer hangs."""
CLOSED = "this LLM was closed, or lives in the process that forked this one; make a new one"


class LoopThread:
    """An event loop in a thread of its own. Holds no reference to who uses it."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name="corekit-llm", daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait. Interrupted: cancel it and wait until it has cleaned up, so that the next call finds nothing of it."""
        ended = threading.Event()

        async def watched() -> T:
            try:
                return await work
            finally:
                ended.set()

        try:
            if not self._thread.is_alive():  # a forked child does not have it
                raise RuntimeError("its thread is not in this process")
            future = asyncio.run_coroutine_threadsafe(watched(), self._loop)
        except RuntimeError as error:
            work.close()
            raise EngineDead(CLOSED) from error
        try:
            return future.result()
        except CancelledError:  # only the end of the loop cancels it
            raise EngineDead(CLOSED) from None
        except BaseException:
            if future.cancel():
                ended.wait(ENDING)
            raise

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

"""Says on a text stream how far a benchmark is, once it takes longer than a moment. Knows nothing of what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import TextIO

PATIENCE = 2.0
"""Seconds of silence before each line."""


class Progress:
    """One stretch of work after another; a stretch that ends in time says nothing."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.begin("", 0, "")

    def begin(self, label: str, total: int, unit: str) -> None:
        self._label, self._total, self._unit, self._done = label, total, unit, 0
        self._began = self._spoke = perf_counter()

    def advance(self, count: int = 1) -> None:
        self._done += count
        self.speak_if_due()

    def reach(self, done: int) -> None:
        self._done = done
        self.speak_if_due()

    def speak_if_due(self) -> None:
        now = perf_counter()
        if now - self._spoke >= PATIENCE:
            self._spoke = now
            print(f"{self._label}: {self._done} of {self._total} {self._unit}, {now - self._began:.0f} s", file=self._out, flush=True)

    @asynccontextmanager
    async def watching(self, label: str, total: int, unit: str) -> AsyncIterator[None]:
        """Speaks even while nothing advances."""
        self.begin(label, total, unit)
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(PATIENCE)
            self.speak_if_due()

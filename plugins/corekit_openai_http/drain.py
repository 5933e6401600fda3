"""The state of a server that drains: no new work, and when it stops the end of what is left. Knows neither requests nor sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Drain:
    """`begun` as long as no new work is taken; from `run` on it stays. `over` is done once the work in flight has had its time."""

    def __init__(self) -> None:
        self.begun = False
        self._stopping = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_live = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._arriving: set[asyncio.Timeout] = set()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Work in flight, for as long as the context is open."""
        self._num_live += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._num_live -= 1
            if not self._num_live:
                self._quiet.set()

    @contextmanager
    def arriving(self, until: asyncio.Timeout) -> Iterator[None]:
        """A request that is no work yet, since it is still being read, for as long as the context is open: `run` ends `until` at once."""
        self._arriving.add(until)
        try:
            yield
        finally:
            self._arriving.remove(until)

    def pause(self) -> None:
        """No new work until `resume`."""
        self.begun = True

    def resume(self) -> bool:
        """New work is taken again. False: `run` has begun, and that is not taken back."""
        self.begun = self._stopping
        return not self._stopping

    async def run(self, seconds: float) -> None:
        """Gives the work in flight its time, then ends it. Being cancelled ends it at once."""
        self.begun = self._stopping = True
        for until in self._arriving:
            until.reschedule(0.0)
        await self._wait(seconds)
        self.over.set_result(None)
        await self._wait(1.0)  # a client that does not read must not hold the server

    async def _wait(self, seconds: float) -> None:
        """Until nothing is in flight, the time is over, or the task is told once more to end."""
        try:
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            forgive()


def forgive() -> None:
    """A cancellation that was taken as an order: the task is not cancelled any more."""
    if (task := asyncio.current_task()) is not None:
        task.uncancel()

"""How a verb takes SIGINT and SIGTERM: before its event loop runs, and while it does. The first ends it in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from .log import tell

ENDING = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal came. Not an Exception, and what Python raises for a signal: nothing on the way may take it for its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


@contextmanager
def stopping() -> Iterator[None]:
    """While parts load, the first signal raises Stopped."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupting() -> Iterator[None]:
    """SIGINT raises Python's own KeyboardInterrupt, which an event loop turns into the end of its task: for what goes on after it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_at_once(code: int) -> NoReturn:
    """End the process without Python's own end, which breaks off threads that are in native code: those then end it with abort()."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or never there
            stream.flush()
    os._exit(code)


def run_until_signal(work: Coroutine[Any, Any, None], said: Callable[[], str] = lambda: "stopping") -> None:
    """Run work in an event loop; the first signal cancels it and raises Stopped once it has cleaned up, a second ends the process at once.

    said: what to tell on stderr at the first.
    """
    early: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        early.append(number)

    for number in ENDING:
        signal.signal(number, remember)  # an exception inside the making of an event loop would leave half of one
    asyncio.run(_until_signal(work, said, early))


async def _until_signal(work: Coroutine[Any, Any, None], said: Callable[[], str], early: list[int]) -> None:
    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(work)
    came: list[int] = []

    def stop(number: int) -> None:
        came.append(number)
        for ending in ENDING:
            loop.add_signal_handler(ending, os._exit, 128 + ending)
        working.cancel()
        with suppress(OSError):  # whoever read stderr may have ended with the same signal
            tell(said())

    for number in ENDING:
        loop.add_signal_handler(number, stop, number)
    if early:
        stop(early[0])
    try:
        with suppress(asyncio.CancelledError):
            await working
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)
            if came:  # what is left to clean up after the loop must not outlast a second signal either
                signal.signal(number, lambda again, frame: os._exit(128 + again))
    if came:
        raise Stopped(came[0])

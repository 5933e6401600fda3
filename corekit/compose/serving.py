"""Frontends that are there before the engine is: they answer that it loads, and go on when it is ready. Knows no signal and no HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .assembly import Assembly
from .composition import Composition
from .frontends import run_frontends


class Loading:
    """What loads, in a thread of its own: not of the loop's, for whose end a loop waits."""

    def __init__(self, load: Callable[[], Assembly]) -> None:
        self._load = load
        self._runs = False

    @property
    def runs(self) -> bool:
        """It has begun and has neither come to its end nor failed."""
        return self._runs

    def begin(self) -> asyncio.Future[Assembly]:
        """Once. Nothing but the end of the process ends it early."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Assembly] = loop.create_future()

        def settle(assembly: Assembly | None, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            elif assembly is not None:
                done.set_result(assembly)

        def work() -> None:
            assembly, fault = None, None
            try:
                assembly = self._load()
            except BaseException as error:
                fault = error
            self._runs = False
            with suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(settle, assembly, fault)

        self._runs = True
        threading.Thread(target=work, name="corekit-load", daemon=True).start()
        return done


async def serve_from_the_start(composition: Composition, loading: Loading, ready: Callable[[Assembly], None]) -> None:
    """Open the frontends, load, call ready, serve until cancelled or until a frontend ends or the engine dies; then close what was loaded.

    What loading raises is raised here, once the frontends have ended. One who is cancelled meanwhile does not wait for it.
    """
    serving = asyncio.ensure_future(run_frontends(composition.frontends, composition.client))
    loaded = loading.begin()
    assembly: Assembly | None = None
    both: set[asyncio.Future[Any]] = {serving, loaded}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if loaded.done():
            try:
                assembly = loaded.result()
            except BaseException:
                composition.client.fail("the model could not be loaded, and the log of the server says why")
                raise
            ready(assembly)
            await assembly.accompany(serving)
    finally:
        serving.cancel()
        await asyncio.wait({serving})
        if assembly is not None:
            assembly.close()
    serving.result()

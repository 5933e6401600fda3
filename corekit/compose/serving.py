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


async def serve_from_the_start(composition: Composition, load: Callable[[], Assembly], ready: Callable[[Assembly], None]) -> None:
    """Open the frontends, load in a thread, call ready, serve until cancelled or until a frontend ends; then close what was loaded.

    What load raises is raised here, once the frontends have ended. One who is cancelled while it loads does not wait for it: the thread
    ends with the process.
    """
    serving = asyncio.ensure_future(run_frontends(composition.frontends, composition.client))
    loading = _in_a_thread(load)
    assembly: Assembly | None = None
    both: set[asyncio.Future[Any]] = {serving, loading}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            try:
                assembly = loading.result()
            except BaseException as error:
                composition.client.fail(f"the model could not be loaded: {error}")
                raise
            ready(assembly)
            await assembly.accompany(serving)
    finally:
        serving.cancel()
        await asyncio.wait({serving})
        if assembly is not None:
            assembly.close()
    serving.result()


def _in_a_thread(load: Callable[[], Assembly]) -> asyncio.Future[Assembly]:
    """Not of the loop's own threads, for whose end a loop waits."""
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
            assembly = load()
        except BaseException as error:
            fault = error
        with suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(settle, assembly, fault)

    threading.Thread(target=work, name="corekit-load", daemon=True).start()
    return done

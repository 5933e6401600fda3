"""Frontends that serve from the start: what they are told while the model loads, when it cannot be loaded, and when the engine dies."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from corekit.api import EngineClient, EngineDead, Health, Overloaded, Prompt, SamplingParams
from corekit.compose.assemble import finish
from corekit.compose.assembly import Assembly
from corekit.compose.composition import Composition, compose
from corekit.compose.serving import Loading, serve_from_the_start

TABLES: dict[str, Any] = {
    "model": {"source": "none", "use": "fingerprint", "max_model_len": 64},
    "scheduler": {"watermark": 0},
    "block_allocator": {"num_blocks": 8, "block_size": 8},
}


class Watching:
    """A frontend that asks once while the model loads, and again once it is there."""

    def __init__(self) -> None:
        self.healths: list[Health] = []
        self.refused: list[Exception] = []
        self.answered = asyncio.Event()
        self.ended = False

    async def serve(self, client: EngineClient) -> None:
        try:
            while not self.answered.is_set():
                self.healths.append(client.health())
                try:
                    async for _ in client.generate(Prompt(text="a"), SamplingParams(max_tokens=2)):
                        self.answered.set()
                except Overloaded as error:
                    self.refused.append(error)
                await asyncio.sleep(0.01)
            await asyncio.Event().wait()
        finally:
            self.healths.append(client.health())
            self.ended = True


def serve(load: Callable[[Composition], Assembly], during: Callable[[Watching, list[Assembly]], Awaitable[None]]) -> tuple[Watching, Loading]:
    """Serves until `during` has ended, then cancels; raises what serving raised."""

    async def main() -> tuple[Watching, Loading]:
        frontend, ready = Watching(), list[Assembly]()
        composition = compose(TABLES, given={"frontend": [frontend]}, environ={}, clock=time.monotonic)
        loading = Loading(lambda: load(composition))
        serving = asyncio.create_task(serve_from_the_start(composition, loading, ready.append))
        watching = asyncio.ensure_future(during(frontend, ready))
        await asyncio.wait({serving, watching}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        watching.cancel()
        await asyncio.wait({serving, watching})
        assert frontend.ended, "no frontend outlives its server"
        if not serving.cancelled():
            serving.result()
        return frontend, loading

    return asyncio.run(main())


async def forever(frontend: Watching, ready: list[Assembly]) -> None:
    await asyncio.Event().wait()


def test_a_frontend_is_there_before_the_model_and_goes_on_with_it() -> None:
    may_load = threading.Event()

    def load(composition: Composition) -> Assembly:
        assert may_load.wait(20)
        return finish(composition)

    async def until_answered(frontend: Watching, ready: list[Assembly]) -> None:
        while len(frontend.refused) < 3:
            await asyncio.sleep(0.01)
        assert ready == []
        may_load.set()
        await frontend.answered.wait()

    frontend, loading = serve(load, until_answered)
    assert frontend.healths[0].loading
    assert "loading" in str(frontend.refused[0])
    assert frontend.healths[-1] == Health(state="ready")
    assert not loading.runs


def test_a_load_that_fails_ends_the_frontends_with_its_error() -> None:
    def load(composition: Composition) -> Assembly:
        raise ValueError("a damaged file")

    with pytest.raises(ValueError, match="a damaged file"):
        serve(load, forever)


def test_who_is_cancelled_while_it_loads_does_not_wait_for_it() -> None:
    may_end = threading.Event()

    def load(composition: Composition) -> Assembly:
        may_end.wait(20)
        raise ValueError("too late for anybody to hear")

    async def at_once(frontend: Watching, ready: list[Assembly]) -> None:
        await asyncio.sleep(0.05)

    try:
        _, loading = serve(load, at_once)
        assert loading.runs
    finally:
        may_end.set()


def test_an_engine_that_dies_ends_its_server() -> None:
    async def kill(frontend: Watching, ready: list[Assembly]) -> None:
        await frontend.answered.wait()
        ready[0].engine.step = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        with pytest.raises(EngineDead):
            async for _ in ready[0].client.generate(Prompt(text="b"), SamplingParams(max_tokens=2)):
                pass
        await asyncio.Event().wait()

    with pytest.raises(EngineDead, match="ZeroDivisionError"):
        serve(finish, kill)

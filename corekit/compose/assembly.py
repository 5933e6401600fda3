"""A whole engine, assembled: what it consists of, its client, its frontends, and an orderly end."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from corekit.api import EngineDead, Executor, Frontend
from corekit.engine.client import Client
from corekit.engine.engine import Engine

from .composition import Composition
from .config import Config
from .errors import ConfigError
from .frontends import run_frontends
from .load_log import LoadLog
from .memory import Pool
from .parts import Part

NOTHING_TO_SERVE = "[[frontend]]: there is none, so there is nothing to serve. Leave the table out for openai-http."

_LOOK_SECONDS = 0.25
"""Between two looks at an engine's health while frontends serve."""


class Assembly:
    """Owns its executor and its engine thread: both end with `close`, and with the `with` block. Nothing in it is shared."""

    def __init__(self, *, composition: Composition, engine: Engine, executor: Executor, client: Client, frontends: tuple[Frontend, ...], pool: Pool) -> None:
        self.composition = composition
        self.engine = engine
        self.executor = executor
        self.client = client
        self.frontends = frontends
        self.pool = pool

    @property
    def config(self) -> Config:
        return self.composition.config

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every slot's parts: provider, distribution, version, and why."""
        return self.composition.parts

    def summary(self) -> list[str]:
        """The start-up lines: model, pool and parts."""
        composition, context = self.composition, self.composition.context
        weights = "" if context.quantization == "none" else f", {context.quantization} weights"
        without = ", no native kernels: installed without a C++ compiler" if context.device == "cpu" and context.pool is None else ""
        where = f"{context.dtype}{weights} on {context.device}, {context.threads} threads{without}"
        model = f"model: {self.client.model.name} ({composition.spec.architecture}, {where})"
        return [model, self.pool.line(), *composition.summary()]

    def start(self) -> None:
        """Start the engine's thread. A second call does nothing."""
        self.client.start()

    async def serve(self) -> None:
        """Run every frontend until cancelled, or until one ends or the engine dies: then the others end too. Starts the engine."""
        if not self.frontends:
            raise ConfigError(NOTHING_TO_SERVE)
        await self.accompany(asyncio.ensure_future(run_frontends(self.frontends, self.composition.client)))

    async def accompany(self, serving: asyncio.Future[None]) -> None:
        """Run the engine while frontends serve, which end with this: its log of loads is written meanwhile.

        Raises EngineDead when it dies: whoever started this process can start it again, and knows no other sign so well as its end.
        """
        self.start()
        dying = asyncio.ensure_future(self._death())
        beside = [asyncio.ensure_future(LoadLog(self.client, clock=self.composition.context.clock).run())] if self.config.engine.log_stats else []
        try:
            watched: list[asyncio.Future[Any]] = [serving, dying]
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        finally:
            everything: list[asyncio.Future[Any]] = [serving, dying, *beside]
            for task in everything:
                task.cancel()
            await asyncio.wait(everything)
        if not serving.cancelled():
            serving.result()
        if not dying.cancelled():
            raise EngineDead(dying.result())

    async def _death(self) -> str:
        """Returns with its reason."""
        while (health := self.client.health()).state != "dead":
            await asyncio.sleep(_LOOK_SECONDS)
        return health.reason

    def close(self) -> None:
        """End the engine and its executor; requests that are alive end with an error. A second call does nothing."""
        try:
            self.client.close()
        finally:
            self.executor.shutdown()

    def __enter__(self) -> Assembly:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

"""Slot `http_route` (provisional, any number): extra routes for HTTP frontends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .frontend import EngineClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path, as a frontend mounts it."""

    path: str
    methods: tuple[str, ...]
    endpoint: Callable[[Any], Awaitable[Any]]
    """A starlette endpoint: request -> response."""


class HttpRoute(Protocol):
    """Adds paths to the HTTP frontends; reaches the engine through the client alone."""

    def routes(self, client: EngineClient) -> Sequence[Route]:
        """The routes to add. A path that the frontend has already is an error at composition."""
        ...

"""Slot `http_route` (provisional, any number): extra routes for HTTP frontends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

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
        """The routes to add, asked for once, at composition: the client may still be loading. A path that is taken is an error."""
        ...


@runtime_checkable
class SupportsRoutes(Protocol):
    """Optional, of frontends that speak HTTP: takes the routes of `http_route` parts."""

    def add_routes(self, routes: Sequence[Route], *, of: str) -> None:
        """Called at composition, once a part, which `of` names. Raises ValueError for a path that is taken, naming both who have it."""
        ...

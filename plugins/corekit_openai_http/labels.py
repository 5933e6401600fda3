"""Which route a path belongs to, as metrics and the log call it. A fixed set: nothing that a client made up becomes a label."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Route

OTHER = "other"
"""Of paths that no route has."""


class RouteLabels:
    """A route's path with the names of its parameters, such as /v1/models/{id}."""

    def __init__(self, table: Sequence[Route]) -> None:
        self._plain = frozenset(route.path for route in table if not route.param_convertors)
        self._patterns = [(route.path_regex, route.path_format) for route in table if route.param_convertors]

    def label(self, path: str) -> str:
        if path in self._plain:
            return path
        return next((name for pattern, name in self._patterns if pattern.match(path)), OTHER)

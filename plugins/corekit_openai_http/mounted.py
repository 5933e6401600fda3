"""Routes of other parts, beside this server's own. Knows paths; nothing of what is behind them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.routing import Route, compile_path

from corekit import api

from .fields import cut
from .gate import ADMIN_PATHS

_PARAMETER = re.compile(r"\{[^}:]*:?([^}]*)\}")
_METHOD = re.compile(r"[A-Z]{1,20}")
_SAMPLES: Mapping[str, str] = {"int": "1", "float": "1.5", "uuid": "00000000-0000-4000-8000-000000000000"}
"""A value for a parameter of each kind; of any other kind "x" is one."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A path and whose it is. `pattern` matches every path that it would answer."""

    path: str
    owner: str
    pattern: re.Pattern[str]


class Mounted:
    """Invariant: each route can be reached: no path of it is answered by one that stands before it, this server's own first of all."""

    def __init__(self, own_paths: Sequence[str]) -> None:
        self.routes: list[Route] = []
        self._taken = [Taken(path, "openai-http itself", re.compile(_PARAMETER.sub(".+", path))) for path in own_paths]

    def add(self, routes: Sequence[api.Route], *, of: str) -> None:
        """Raises ValueError for the first that is taken or none that could be; then none of them was added."""
        taken = list(self._taken)
        for route in routes:
            pattern = _checked(route, of)
            sample = _PARAMETER.sub(lambda found: _SAMPLES.get(found[1], "x"), route.path)
            if (there := next((one for one in taken if one.path == route.path or one.pattern.fullmatch(sample)), None)) is not None:
                by = "" if there.path == route.path else f", whose {there.path} comes before it and answers such paths too"
                raise ValueError(f"the path {cut(route.path)} of {of} is taken by {there.owner}{by}")
            taken.append(Taken(route.path, of, pattern))
        self._taken = taken
        self.routes += [Route(route.path, route.endpoint, methods=list(route.methods)) for route in routes]


def _checked(route: api.Route, of: str) -> re.Pattern[str]:
    """The pattern of its path. Raises ValueError where a route cannot be served as it is."""
    if not route.path.startswith("/"):
        raise ValueError(f"the path {cut(route.path)!r} of {of} does not begin with a slash")
    if route.path.startswith(ADMIN_PATHS):
        raise ValueError(f"the path {cut(route.path)} of {of} is below {ADMIN_PATHS}, which is openai-http's own")
    if not route.methods or not all(_METHOD.fullmatch(method) for method in route.methods):
        raise ValueError(f'the methods of {cut(route.path)} of {of} must be names such as "GET" and "POST", at least one, got {route.methods!r}')
    if not callable(route.endpoint):
        raise ValueError(f"the endpoint of {cut(route.path)} of {of} must be a function that takes a request, got {type(route.endpoint).__name__}")
    try:
        return compile_path(route.path)[0]
    except (AssertionError, ValueError) as error:  # an unknown kind of parameter, or one name twice
        raise ValueError(f"the path {cut(route.path)} of {of} is none: {error}") from None

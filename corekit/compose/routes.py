"""Routes of `http_route` parts, handed to the frontends that take them. Knows no path of any frontend."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import BuildContext, EngineClient, Frontend, HttpRoute, Route, SupportsRoutes

from .errors import ConfigError
from .parts import Part


def mount(parts: Sequence[Part], context: BuildContext, client: EngineClient, frontends: Sequence[Frontend]) -> None:
    """Build the parts and hand over their routes. Raises ConfigError with every path that two have, and where nobody takes routes."""
    takers = [frontend for frontend in frontends if isinstance(frontend, SupportsRoutes)]
    if parts and not takers:
        raise ConfigError(f"{parts[0].place}: {parts[0].candidate} has routes, but no frontend here takes any. Add one that speaks HTTP, such as openai-http.")
    problems: list[str] = []
    for part in parts:
        component: HttpRoute = part.build(context)
        with part.named("asked for its routes"):
            routes = component.routes(client)
        if wrong := _wrong(routes):
            problems.append(f"{part.place}: {part.candidate} gave {wrong} as its routes, expected a sequence of corekit.api.Route")
            continue
        for taker in takers:
            try:
                taker.add_routes(routes, of=str(part.candidate))
            except ValueError as error:
                problems.append(f"{part.place}: {error}")
    if problems:
        raise ConfigError(problems)


def _wrong(routes: object) -> str:
    """What they are instead of routes; empty where they are some."""
    if not isinstance(routes, Sequence):
        return f"a {type(routes).__name__}"
    return next((f"a {type(one).__name__} among others" for one in routes if not isinstance(one, Route)), "")

"""The table of routes, and the routes that do not generate."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from corekit.api import EngineClient

from .drain import Drain
from .errors import ApiError, unavailable
from .exchange import Exchange
from .fields import cut
from .gate import Gate
from .metrics import Meters
from .options import HttpOptions
from .requests import chat_job, check_model, completion_job, served_names
from .shapes import ChatShape, CompletionShape
from .wire import ModelCard, ModelList


class Pages:
    """The routes that read what is known already."""

    def __init__(self, client: EngineClient, options: HttpOptions, meters: Meters, drain: Drain) -> None:
        self._client = client
        self._options = options
        self._meters = meters
        self._drain = drain

    async def models(self, request: Request) -> Response:
        return _json(ModelList(data=[self._card(name) for name in served_names(self._client.model, self._options)]))

    async def model(self, request: Request) -> Response:
        name = request.path_params["id"]
        check_model(name, self._client.model, self._options)
        return _json(self._card(name))

    async def health(self, request: Request) -> Response:
        """200 as long as the engine lives, while draining too: a server that finishes its work is not to be restarted."""
        self._check_engine()
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 while new work is taken."""
        self._check_engine()
        if self._drain.begun:
            raise unavailable("This server is stopping and takes no new work", "draining")
        return _json({"status": "ready"})

    def _check_engine(self) -> None:
        health = self._client.health()
        if health.state == "loading":
            raise unavailable("The model is still loading", "loading")
        if health.state == "dead":
            raise unavailable(f"The engine is dead: {health.reason or 'no reason given'}", "engine_dead")

    async def version(self, request: Request) -> Response:
        try:
            return _json({"version": version("corekit")})
        except PackageNotFoundError:
            return _json({"version": "unknown"})

    async def metrics(self, request: Request) -> Response:
        return Response(self._meters.page(), headers={"content-type": CONTENT_TYPE_LATEST})

    def _card(self, name: str) -> ModelCard:
        model = self._client.model
        return ModelCard(id=name, created=model.created, max_model_len=model.max_model_len)


def routes(client: EngineClient, options: HttpOptions, meters: Meters, drain: Drain) -> list[Route]:
    pages = Pages(client, options, meters, drain)
    completions = Exchange(client, options, meters, drain, read=completion_job, shape=CompletionShape)
    chat = Exchange(client, options, meters, drain, read=chat_job, shape=ChatShape)
    return [
        Route("/v1/models", pages.models),
        Route("/v1/models/{id:path}", pages.model),
        Route("/v1/completions", completions, methods=["POST"], name="completions"),
        Route("/v1/chat/completions", chat, methods=["POST"], name="chat_completions"),
        Route("/health", pages.health),
        Route("/ready", pages.ready),
        Route("/ping", pages.health, methods=["GET", "POST"]),
        Route("/version", pages.version),
        Route("/metrics", pages.metrics),
    ]


def build_app(client: EngineClient, options: HttpOptions, drain: Drain) -> ASGIApp:
    meters = Meters(client)
    table = routes(client, options, meters, drain)
    gate = Middleware(Gate, options=options, meters=meters, handlers=frozenset(route.path for route in table))
    app = Starlette(routes=table, middleware=[gate], exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False  # a redirect is neither an answer nor an error in OpenAI's form
    return app


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _http_error(request: Request, error: Exception) -> Response:
    """What the router says: no such path, or no such method there."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    path = cut(request.scope["path"])
    if error.status_code == 404:
        known = ", ".join(route.path_format for route in request.app.routes)
        refusal = ApiError(404, f"This server has no route {path}. Its routes: {known}", code="not_found")
    elif error.status_code == 405:
        allowed = headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
        refusal = ApiError(405, f"{path} takes {allowed}, not {request.method[:20]}", code="method_not_allowed")
    else:
        refusal = ApiError(error.status_code, str(error.detail))
    return Response(refusal.body(), status_code=refusal.status, headers=headers, media_type="application/json")

"""The routes that read what is known already. Knows nothing of how answers are generated."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .requests import check_model, served_names
from .shared import Shared
from .software import corekit_version
from .wire import ModelCard, ModelList, ModelPermission


class Pages:
    """The routes that read what is known already."""

    def __init__(self, shared: Shared) -> None:
        self._client = shared.client
        self._options = shared.options
        self._meters = shared.meters
        self._admission = shared.admission
        self._live = shared.live

    async def models(self, request: Request) -> Response:
        return _json(ModelList(data=[self._card(name) for name in served_names(self._client.model, self._options)]))

    async def model(self, request: Request) -> Response:
        name = request.path_params["id"]
        check_model(name, self._client.model, self._options)
        return _json(self._card(name))

    async def health(self, request: Request) -> Response:
        """200 as long as the engine lives, while draining too: a server that finishes its work is not to be restarted."""
        self._admission.check_engine()
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 while new work is taken."""
        self._admission.check()
        return _json({"status": "ready"})

    async def version(self, request: Request) -> Response:
        return _json({"version": corekit_version()})

    async def load(self, request: Request) -> Response:
        """Requests that generate and are not answered yet."""
        return _json({"server_load": len(self._live)})

    async def metrics(self, request: Request) -> Response:
        body, kind = await self._meters.page(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    def _card(self, name: str) -> ModelCard:
        model = self._client.model
        permission = ModelPermission(id=f"modelperm-{name}", created=model.created, allow_logprobs=model.supports_logprobs)
        return ModelCard(id=name, created=model.created, root=model.name, max_model_len=model.max_model_len, permission=[permission])


def page_routes(shared: Shared) -> list[Route]:
    pages = Pages(shared)
    return [
        Route("/v1/models", pages.models),
        Route("/v1/models/{id:path}", pages.model),
        Route("/health", pages.health),
        Route("/ready", pages.ready),
        Route("/ping", pages.health, methods=["GET", "POST"]),
        Route("/version", pages.version),
        Route("/load", pages.load),
        Route("/metrics", pages.metrics),
    ]


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

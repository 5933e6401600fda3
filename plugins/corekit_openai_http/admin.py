"""The administrator's routes: drain and resume, end requests, forget cached prefixes. Knows no keys: the gate lets nobody else in."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .errors import ApiError, invalid, unavailable
from .exchange import read_body
from .fields import convert, read_object
from .ids import REQUEST_ID
from .log import LOG
from .shared import Shared

T = TypeVar("T")


class NoFields(msgspec.Struct, forbid_unknown_fields=True):
    """A body may be left out."""


class AbortBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of the two."""

    request_id: str | None = None
    """As in the `x-request-id` of the answer; all requests that have it."""
    all: bool = False


class Admin:
    """Each answers with what it did. All may be called again."""

    def __init__(self, shared: Shared) -> None:
        self._client = shared.client
        self._options = shared.options
        self._drain = shared.drain
        self._live = shared.live

    async def reset_prefix_cache(self, request: Request) -> Response:
        await self._fields(request, NoFields)
        if self._client.health().loading:
            raise unavailable("The model is still loading", "loading")
        num_blocks = await self._client.reset_prefix_cache()
        LOG.info("the prefix cache was reset: %d blocks", num_blocks)
        return _json({"num_blocks": num_blocks})

    async def drain(self, request: Request) -> Response:
        await self._fields(request, NoFields)
        self._drain.pause()
        LOG.info("draining: no new work is taken until /admin/resume")
        return _json({"status": "draining", "num_requests": len(self._live)})

    async def resume(self, request: Request) -> Response:
        await self._fields(request, NoFields)
        if not self._drain.resume():
            raise ApiError(409, "This server was told to stop, which cannot be taken back. Start another", code="stopping")
        LOG.info("new work is taken")
        return _json({"status": "ready"})

    async def abort(self, request: Request) -> Response:
        body = await self._fields(request, AbortBody)
        if (body.request_id is not None) == body.all:
            raise invalid('request_id or all must be given, such as {"request_id": "req-1"} or {"all": true}, and not both', "request_id")
        if body.request_id is not None and not REQUEST_ID.fullmatch(body.request_id):
            raise invalid("request_id must be 1 to 64 letters, digits, dots, underscores or dashes", "request_id")
        num_requests = self._live.end(body.request_id)
        LOG.info("requests ended by the administrator: %d", num_requests)
        return _json({"num_requests": num_requests})

    async def _fields(self, request: Request, kind: type[T]) -> T:
        length = request.headers.get("content-length", "0")
        empty = length == "0" and "transfer-encoding" not in request.headers
        fields = {} if empty else read_object(await read_body(request.scope, request.receive, self._options))
        return convert(fields, kind)


def admin_routes(shared: Shared) -> list[Route]:
    """None without a key for them."""
    if not shared.options.admin_key:
        return []
    admin = Admin(shared)
    return [
        Route("/admin/reset_prefix_cache", admin.reset_prefix_cache, methods=["POST"]),
        Route("/admin/drain", admin.drain, methods=["POST"]),
        Route("/admin/resume", admin.resume, methods=["POST"]),
        Route("/admin/abort", admin.abort, methods=["POST"]),
    ]


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

"""Around every route: request ids, keys, errors as JSON, counts and the request log. Knows no route's meaning."""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access_log import log_access
from .errors import ApiError, from_exception, unexpected
from .exchange import ClientLeft
from .ids import request_id_of
from .keys import ADMIN, KeyRing, Owner, all_keys
from .labels import OTHER, RouteLabels
from .log import LOG
from .metrics import Meters
from .options import HttpOptions
from .reply import JSON
from .stopwatch import Stopwatch

OPEN_PATHS = frozenset({"/health", "/ready", "/ping", "/version"})
"""The only paths that need no key: all others do, known or not."""

ADMIN_PATHS = "/admin/"
"""What begins so needs the administrator's key, where there is one, and no other opens it."""


@dataclass(slots=True)
class Visit:
    """What the gate knows of one request."""

    request_id: str
    status: int | None = None
    code: str | None = None
    """Of the error that was its answer."""
    stopwatch: Stopwatch | None = None
    """Of a request that generates."""
    left: bool = False
    """The client went away."""
    owner: Owner | None = None
    """Whose key it carries; None: no keys are configured, or the route needs none."""

    @property
    def tenant(self) -> str:
        """The name of its key; empty without keys."""
        return "" if self.owner is None else self.owner.name


class Gate:
    """The outermost layer: what passes it outwards is an answer, never an exception."""

    def __init__(self, app: ASGIApp, *, options: HttpOptions, meters: Meters, labels: RouteLabels) -> None:
        self._app = app
        self._keys = KeyRing(all_keys(options.keys, options.api_keys))
        self._admin = KeyRing({ADMIN: options.admin_key} if options.admin_key else {})
        self._log_requests = options.log_requests
        self._meters = meters
        self._labels = labels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        headers = dict(reversed(scope["headers"]))
        visit = scope["corekit"] = Visit(request_id_of(scope["headers"]))

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", visit.request_id.encode())]}
            await send(message)

        try:
            visit.owner = self._owner(scope["path"], headers.get(b"authorization", b""))
            await self._app(scope, receive, send_marked)
        except ClientLeft:
            visit.left = True
        except Exception as error:
            await self._refuse(error, visit, send_marked)
        self._note(scope, visit, time.monotonic() - started)

    def _owner(self, path: str, authorization: bytes) -> Owner | None:
        """Raises ApiError for whoever may not enter here."""
        administers = bool(self._admin) and path.startswith(ADMIN_PATHS)
        keys = self._admin if administers else self._keys
        if not keys or path in OPEN_PATHS:
            return None
        owner = keys.owner(authorization)
        if owner is None:
            kind = "administrator's" if administers else "API"
            message = f"The {kind} key is missing or wrong. Send it as the header Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        return owner

    async def _refuse(self, error: Exception, visit: Visit, send: Send) -> None:
        refusal = from_exception(error)
        if refusal is None:
            LOG.error("request %s failed", visit.request_id, exc_info=error, extra={"request_id": visit.request_id})
            refusal = unexpected(visit.request_id)
        visit.code = refusal.code
        if visit.status is not None:  # an answer is under way and cannot become another one
            return
        body = refusal.body()
        extra = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
        await send({"type": "http.response.start", "status": refusal.status, "headers": [JSON, (b"content-length", str(len(body)).encode()), *extra]})
        await send({"type": "http.response.body", "body": body})

    def _note(self, scope: Scope, visit: Visit, seconds: float) -> None:
        path = scope["path"]
        handler = self._labels.label(path)
        status = 499 if visit.status is None else visit.status  # 499: the client left before there was an answer
        self._meters.http.answered(handler, scope["method"], status, seconds)
        if path not in OPEN_PATHS:
            self._meters.http.rejected(visit.code)
        if self._log_requests:
            log_access(
                request_id=visit.request_id,
                method=scope["method"] if handler != OTHER else "-",
                route=handler,
                status=status,
                seconds=seconds,
                tenant=visit.tenant,
                stopwatch=visit.stopwatch,
                left=visit.left,
            )

"""Errors in OpenAI's form, and which status each of the engine's errors gets. Knows nothing of requests or sockets."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import msgspec

from corekit.api import EngineDead, InvalidRequest, Overloaded, RequestFailed

_TYPES: Mapping[int, str] = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error", 500: "server_error", 503: "overloaded_error"}


class ApiError(Exception):
    """An answer that is an error: a status and the four fields of OpenAI's error object."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> bytes:
        return msgspec.json.encode(self.content())

    def content(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, *, code: str | None = None) -> ApiError:
    """400: the request is wrong, and sending it again cannot help."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str, seconds: float = 1.0) -> ApiError:
    """503: try again later, in about so many seconds, or elsewhere."""
    return ApiError(503, message, code=code, headers=retry_headers(seconds))


def retry_headers(seconds: float) -> dict[str, str]:
    """In whole seconds for everybody; OpenAI's clients look at the milliseconds first, which differ so that not all of them come at once."""
    spread = random.uniform(0.75, 1.25)
    return {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(round(1000 * seconds * spread)), "x-should-retry": "true"}


def from_exception(error: BaseException, names: dict[str, str] | None = None, retry_seconds: float = 1.0) -> ApiError | None:
    """The answer for an error of the engine; None for what nobody foresaw.

    names: field of the engine -> field of the request. retry_seconds: until there may be room in a queue that is full.
    """
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            field = "template" if (error.field or "").startswith("template ") else error.field  # "template option NAME"
            return invalid(str(error), (names or {}).get(field or "", field), code=error.code)
        case Overloaded():
            return unavailable(str(error), "server_overloaded", retry_seconds)
        case EngineDead():
            return unavailable(str(error), "engine_dead")
        case RequestFailed():
            # A fault of its own comes again: OpenAI's clients would send it twice more.
            return ApiError(500, str(error), code="request_failed", headers={"x-should-retry": "false"})
        case _:
            return None


def unexpected(request_id: str) -> ApiError:
    """500 without internals: the log has them, under the same id."""
    return ApiError(500, f"The server failed to answer this request. Its log has the cause under request id {request_id}", code="internal_error")

"""Errors that cross the contract: what a request can be told. Knows nothing of HTTP or of where options came from."""

from __future__ import annotations


class CorekitError(Exception):
    """The root of every error that corekit raises on purpose."""


class InvalidRequest(CorekitError, ValueError):
    """The request itself is wrong and was refused before it was queued; sending it again cannot help.

    `field` names the offending field as the caller knows it, `code` is a stable machine-readable word or None.
    """

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class Overloaded(CorekitError):
    """The queue is full; the same request may be accepted later."""


class RequestFailed(CorekitError):
    """This request ended with a fault of its own (a part raised on its row). Others are not affected."""


class EngineDead(CorekitError):
    """The engine can no longer answer; every request gets this error until the process is restarted."""

"""One HTTP answer on its way out: whole, or as server-sent events. Knows ASGI; nothing of what the answer says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from starlette.types import Send

JSON = (b"content-type", b"application/json")
_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

_PATIENCE_SECONDS = 1.0
"""For a write that nobody needs, and for the last ones of a stream: a client that does not read takes neither."""


def event(payload: bytes, name: bytes = b"") -> bytes:
    """One server-sent event: one line of JSON, beneath its name if it has one."""
    return b"event: %b\ndata: %b\n\n" % (name, payload) if name else b"data: %b\n\n" % payload


class Reply:
    """Headers go out with the first bytes; after `end` or `whole` nothing follows."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last_sent: float | None = None
        self.started = False
        self.streaming = False

    async def whole(self, body: bytes) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [JSON, (b"content-length", str(len(body)).encode())]})
        await self._send({"type": "http.response.body", "body": body})

    async def events(self, events: Sequence[bytes]) -> None:
        await self._open()
        if events:
            await self._write(b"".join(events))

    async def comment_if_silent(self, seconds: float) -> None:
        """Keeps proxies from closing a stream that waits. Not while a write is under way, nor before the first."""
        if self._last_sent is not None and time.monotonic() - self._last_sent >= seconds:
            await _soon(self._write(b": keep-alive\n\n"))

    async def fail(self, events: Sequence[bytes]) -> bool:
        """The last events of a stream that cannot go on. False: the client does not read, and its connection is to be cut without the stream's end."""
        return await _soon(self._write(b"".join(events))) and await _soon(self.end())

    async def end(self, events: Sequence[bytes] = ()) -> None:
        """The end of the stream, in one write with its last events."""
        await self._open()
        self._last_sent = None  # nothing is sent between, or after
        await self._send({"type": "http.response.body", "body": b"".join(events)})
        self.streaming = False

    async def _open(self) -> None:
        if not self.started:
            self.started = self.streaming = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(_STREAM_HEADERS)})

    async def _write(self, data: bytes) -> None:
        self._last_sent = None
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._last_sent = time.monotonic()


async def _soon(write: Coroutine[Any, Any, None]) -> bool:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await write
    except TimeoutError:
        return False
    return True

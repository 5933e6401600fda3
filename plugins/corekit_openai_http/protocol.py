"""HTTP/1.1 as uvicorn reads it, with JSON errors for what is not HTTP, limits on heads and on silence, and no upgrades. Knows nothing of what is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .errors import ApiError
from .ids import request_id_of
from .options import HttpOptions

MAX_HEAD_BYTES = 16 * 1024
MAX_WAITING_BYTES = 256 * 1024
"""Requests are read ahead of their turn up to about here."""


class Deadline:
    """Runs from the moment a phase is entered, whatever arrives meanwhile; a phase without a time has no end of its own."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds
        self._phase = ""
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, phase: str, expired: Callable[[str], None]) -> None:
        if phase == self._phase:
            return
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._seconds[phase], expired, phase) if phase in self._seconds else None


class AnswerTransport:
    """The transport as an answer has it: the protocol decides when a connection whose answer is complete is closed."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class JsonErrorProtocol(HttpToolsProtocol):
    """One connection. `_running` is the request being answered; the newest one, `cycle`, may be another that waits for its turn.

    `_num_stuck_bytes` counts what arrived since a head, a piece of a body or a message was last complete, `_num_head_bytes` what the newest head
    holds, `_num_waiting_bytes` what arrived while requests wait. After the last answer, `_ended`, what still comes is dropped.
    """

    _num_stuck_bytes = 0
    _num_head_bytes = 0
    _num_waiting_bytes = 0
    _moved = False
    _in_head = False
    _in_body = False
    _ended = False
    _running: RequestResponseCycle | None = None

    def __init__(self, *, options: HttpOptions, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        seconds = {"idle": options.idle_seconds, "head": options.head_seconds, "refused body": options.refused_body_seconds}
        self._deadline = Deadline(seconds)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline.enter(self._phase(), self._expired)

    def data_received(self, data: bytes) -> None:
        self._moved = False
        try:
            self._parse(data)
        except HttpParserError:
            if self._num_head_bytes <= MAX_HEAD_BYTES:
                self.send_400_response("")
        self._num_stuck_bytes = 0 if self._moved else self._num_stuck_bytes + len(data)
        if max(self._num_stuck_bytes, self._num_head_bytes) > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(ApiError(431, f"The head or the trailers of the request are larger than {MAX_HEAD_BYTES} bytes", code="head_too_large"))
        self._num_waiting_bytes = self._num_waiting_bytes + len(data) if self.pipeline else 0
        if 0 < self._num_waiting_bytes <= MAX_WAITING_BYTES and not self.transport.is_closing():
            self.flow.resume_reading()  # a connection that is not read from does not show that its client left
        self._deadline.enter(self._phase(), self._expired)

    def _phase(self) -> str:
        if self._running is not None and not self._running.response_complete:
            return "busy"
        return "refused body" if self._in_body else "head" if self._in_head else "idle"

    def _expired(self, phase: str) -> None:
        if phase == "head":
            self._refuse(ApiError(408, "The head of the request did not arrive in time (head_seconds)", code="head_timeout"))
        self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # the deadline does that, and is not put off by single bytes
        self._deadline.enter(self._phase(), self._expired)

    def _end(self) -> None:
        """Closes the connection after its last answer. While a body arrives only this side of it: else that answer would be lost in a reset.

        An answer that was left incomplete is cut, with what its client did not read, and so never looks like a complete one.
        """
        if self._running is not None and not self._running.response_complete:
            self.transport.abort()
        elif self._in_body and self.cycle.response_complete and not self.transport.is_closing():
            self._ended = True
            self.transport.write_eof()
        else:
            self.transport.close()

    def _parse(self, data: bytes) -> None:
        """Feeds the parser, which ends a message without its body where the client offers an upgrade: its head is read again without the offer."""
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
                return
            except HttpParserUpgrade as offer:
                if not self._offered():
                    return
                rest = rest[offer.args[0] :]
                method, version = self.parser.get_method(), self.parser.get_http_version().encode()
                lines = [b"%b %b HTTP/%b" % (method, self.url, version), *(b"%b: %b" % header for header in self.headers if header[0] != b"upgrade")]
                self.parser = HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n")

    def _offered(self) -> bool:
        """Whether this message offers an upgrade. A tunnel is none: its target is no path, and is refused as such."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def connection_lost(self, exc: Exception | None) -> None:
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self._deadline.enter("closed", self._expired)
        super().connection_lost(exc)
        self.pipeline.clear()  # requests and their connection name each other, and would be kept until garbage is collected
        self.cycle = self._running = None  # type: ignore[assignment]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._num_head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer, and nobody reads those
            self._count_head(len(name) + len(value) + len(": \r\n"))
            super().on_header(name, value)

    def _count_head(self, num_bytes: int) -> None:
        """However it arrives, even in one piece. Raises ValueError, which ends the parser, where it is too large."""
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head is too large")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = True
        self._moved = True
        if not self._offered() and not self._ended:
            super().on_headers_complete()
            self.cycle.transport = AnswerTransport(self.transport, self._end)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._moved = True
        if not self._offered():
            super().on_message_complete()
        if self._ended:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "This is not a valid HTTP request", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        inside = self._running is not None and self._running.response_started and not self._running.response_complete
        if not inside and not self._ended:
            body = error.body()
            request_id = request_id_of(self.headers if self._in_head else ())  # what was read of its head
            start = STATUS_LINE[error.status] + b"content-type: application/json\r\nconnection: close\r\n"
            self.transport.write(start + b"content-length: %d\r\nx-request-id: %b\r\n\r\n" % (len(body), request_id.encode()) + body)
        self.transport.close()

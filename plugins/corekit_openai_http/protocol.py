"""HTTP/1.1 as uvicorn reads it, with two additions: JSON errors for what is not HTTP, and a limit on the head of a request."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import ApiError

MAX_HEAD_BYTES = 64 * 1024


class JsonErrorProtocol(HttpToolsProtocol):
    """One connection. `_num_stuck_bytes` counts what arrived since a head, a piece of a body or a message was last complete."""

    _num_stuck_bytes = 0
    _moved = False

    def data_received(self, data: bytes) -> None:
        self._moved = False
        super().data_received(data)
        self._num_stuck_bytes = 0 if self._moved else self._num_stuck_bytes + len(data)
        if self._num_stuck_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(ApiError(431, f"The head of the request is larger than {MAX_HEAD_BYTES} bytes.", code="head_too_large"))

    def on_headers_complete(self) -> None:
        self._moved = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._moved = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "This is not a valid HTTP request.", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        body = error.body()
        lines = (f"HTTP/1.1 {error.status} Bad Request", "content-type: application/json", f"content-length: {len(body)}", "connection: close")
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.transport.close()

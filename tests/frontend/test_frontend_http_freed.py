"""What a request took is freed when it ends, refused or not: nothing waits for the collector of garbage."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from corekit_openai_http.errors import ApiError
from corekit_openai_http.protocol import JsonErrorProtocol
from corekit_openai_http.requests import Job
from http_live import MODEL, Live, PlainClient, eventually
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from corekit.api import InvalidRequest, Overloaded

TEXT = "/v1/completions"
OK: Mapping[str, Any] = {"model": MODEL, "prompt": "hi"}


class Failing(PlainClient):
    """A new error for each request: one that is kept would itself keep what it came through."""

    async def _news(self, *given: Any) -> Any:
        async for output in super()._news(*given):
            if self.fail_at is not None and self.fail_at <= 0:
                raise Overloaded("too much")
            self.fail_at = None if self.fail_at is None else self.fail_at - 1
            yield output


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.freeze()  # what other tests keep is not seen by `alive`
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def alive(*kinds: type) -> list[type]:
    """Of these kinds, what was made in this test and is not freed."""
    return [type(one) for one in gc.get_objects() if type(one) in kinds]


REFUSED: list[tuple[int, dict[str, Any]]] = [
    (400, {"content": b"{"}),
    (400, {"content": b"["}),
    (400, {"content": b"[]"}),
    (400, {"content": b"[" * 100_000}),
    (400, {"content": b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}"}),
    (400, {"content": b"[" * 300_000}),
    (400, {"json": {}}),
    (400, {"json": {**OK, "n": 0}}),
    (400, {"json": {**OK, "n": 0, "user": "u" * 300_000}}),
    (400, {"json": {**OK, "prompt": [999]}}),
    (400, {"json": {**OK, "prompt": [[1], [999], [2]]}}),
    (400, {"json": {**OK, "prompt": [999], "stream": True}}),
    (404, {"json": {**OK, "model": "x"}}),
    (413, {"content": b"x" * 2**20}),
    (413, {"content": iter([b"x" * 2**19] * 2)}),
    (415, {"content": b"{}", "headers": {"content-type": "text/plain"}}),
]


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(("status", "asked"), REFUSED)
def test_a_refused_request_is_freed_at_once(status: int, asked: dict[str, Any]) -> None:
    with Live(PlainClient(), max_body_bytes=2**19) as live:
        response = live.http.post(TEXT, **{"headers": {"content-type": "application/json"}, **asked})
        assert response.status_code == status
        assert eventually(lambda: not alive(ApiError, InvalidRequest, Job), 2.0), alive(ApiError, InvalidRequest, Job)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("prompt", ["hi", ["hi", "ho"]])
@pytest.mark.parametrize("fail_at", [None, 0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_was_begun_is_freed_at_once(stream: bool, fail_at: int | None, prompt: Any) -> None:
    with Live(Failing(fail_at=fail_at)) as live:
        response = live.http.post(TEXT, json={**OK, "prompt": prompt, "stream": stream})
        assert response.status_code == (200 if fail_at is None or (stream and fail_at) else 503)
        assert eventually(lambda: not alive(ApiError, Overloaded, Job), 2.0), alive(ApiError, Overloaded, Job)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("content", [b'{"model": "tiny", "prompt": "hi"}', b"[" * 100_000, b"x" * 2**20, b""])
def test_a_connection_is_freed_when_it_is_closed(content: bytes) -> None:
    with Live(PlainClient(), max_body_bytes=2**19) as live:
        host, port = live.url.removeprefix("http://").split(":")
        for again in range(3):
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
                connection.sendall(head.encode() + content)
                if again:
                    assert connection.recv(8) == b"HTTP/1.1"
                if again == 2:
                    connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        assert eventually(lambda: not alive(JsonErrorProtocol, RequestResponseCycle), 2.0), alive(JsonErrorProtocol, RequestResponseCycle)

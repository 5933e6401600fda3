"""Request ids: on every answer whatever its kind, the client's own where it is one, and on the lines of the log."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from http_live import MODEL, Live, PlainClient, eventually

from corekit.api import Overloaded, RequestFailed

TEXT, KEY = "/v1/completions", {"authorization": "Bearer key"}


@pytest.fixture(scope="module")
def client() -> PlainClient:
    return PlainClient()


@pytest.fixture(scope="module")
def live(client: PlainClient) -> Iterator[Live]:
    with Live(client, api_keys=("key",), log_requests=True, max_body_bytes=2000) as started:
        yield started


def ask(live: Live, **headers: str) -> list[tuple[int, httpx.Response]]:
    """One answer of each kind that a route gives, with the status it must have."""
    http, more, body = live.http, KEY | headers, {"model": MODEL, "prompt": "hi"}
    return [
        (200, http.post(TEXT, json=body, headers=more)),
        (200, http.post(TEXT, json=body | {"stream": True}, headers=more)),
        (200, http.get("/health", headers=headers)),
        (200, http.head("/v1/models", headers=more)),
        (200, http.get("/metrics", headers=more)),
        (400, http.post(TEXT, json=body | {"temperature": 9}, headers=more)),
        (400, http.post(TEXT, content=b"{", headers=more | {"content-type": "application/json"})),
        (401, http.post(TEXT, json=body, headers=headers)),
        (404, http.get("/nowhere", headers=more)),
        (405, http.get(TEXT, headers=more)),
        (413, http.post(TEXT, json=body | {"user": "u" * 3000}, headers=more)),
        (415, http.post(TEXT, content=b"x", headers=more)),
    ]


def test_every_answer_has_the_id_of_its_request(live: Live) -> None:
    for status, answer in ask(live, **{"X-Request-Id": "mine.1_2-3"}):
        assert (answer.status_code, answer.headers.get_list("x-request-id")) == (status, ["mine.1_2-3"]), answer.request.url


def test_who_sends_none_or_one_that_is_none_gets_a_new_one(live: Live) -> None:
    answers = [answer for wrong in ({}, {"x-request-id": "no id"}, {"x-request-id": ""}) for _, answer in ask(live, **wrong)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(len(answer.headers.get_list("x-request-id")) == 1 for answer in answers)
    assert all(id.startswith("req-") and len(id) == 36 for id in ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("a bug"), 500), (RequestFailed("it failed"), 500), (Overloaded("full"), 503)])
def test_errors_of_the_engine_have_it_and_so_has_a_stream_that_breaks(
    live: Live, client: PlainClient, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    monkeypatch.setattr(client, "error", error)
    for fail_at, stream, seen in ((0, False, status), (0, True, status), (2, True, 200)):
        monkeypatch.setattr(client, "fail_at", fail_at)
        body = {"model": MODEL, "prompt": "hi", "stream": stream}
        answer = live.http.post(TEXT, json=body, headers=KEY | {"x-request-id": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (seen, "mine")


def raw(live: Live, data: bytes) -> httpx.Headers:
    """The headers of the answer to bytes that may be no HTTP."""
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(data)
        text = b""
        while b"\r\n\r\n" not in text and (piece := connection.recv(65536)):
            text += piece
    return httpx.Headers([tuple(line.split(b": ", 1)) for line in text.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]])  # type: ignore[misc]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"nonsense\r\n\r\n", "req-"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\nmore: x\r\nno colon\r\n\r\n", "mine"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nX-Request-ID: mine\r\nx: " + b"x" * 70_000, "mine"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx-request-id: no id\r\nx: " + b"x" * 70_000, "req-"),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n\r\n", "req-"),
    ],
)
def test_what_is_no_request_is_answered_with_one_too(live: Live, data: bytes, expected: str) -> None:
    assert raw(live, data)["x-request-id"].startswith(expected)


def test_lines_of_the_log_have_it_as_a_field(live: Live, client: PlainClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(client, "error", RuntimeError("a bug"))
    monkeypatch.setattr(client, "fail_at", 0)
    answer = live.http.post(TEXT, json={"model": MODEL, "prompt": "hi"}, headers=KEY | {"x-request-id": "mine"})
    assert "under request id mine" in json.loads(answer.text)["error"]["message"]
    live.http.get("/health", headers={"x-request-id": "other"})

    def lines() -> list[Any]:
        return [record for record in caplog.records if record.name == "corekit.openai_http"]

    assert eventually(lambda: len(lines()) == 3)  # an answer is sent before its line
    assert [(line.levelname, line.request_id) for line in lines()] == [("ERROR", "mine"), ("INFO", "mine"), ("INFO", "other")]
    assert (lines()[-1].route, lines()[-1].status) == ("/health", 200)

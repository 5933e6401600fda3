"""What a server does that has too much to do, or clients too slow: refusals and when to come again, deadlines, streams that nobody reads."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from corekit_openai_http import HttpOptions
from corekit_openai_http.admission import Admission
from corekit_openai_http.answer import _merged
from corekit_openai_http.drain import Drain
from corekit_openai_http.errors import ApiError, retry_headers
from corekit_openai_http.options import OptionsError
from http_live import Live, PlainClient, check_error, events, eventually
from prometheus_client.parser import text_string_to_metric_families

from corekit.api import Health, Overloaded, RequestOutput

TEXT = "/v1/completions"
HEAD = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "a", "max_tokens": 400, **more}


@dataclass
class Starting(PlainClient):
    """Loads until it is told that it is there."""

    loading: bool = True

    def health(self) -> Health:
        return Health(state="dead", reason="it loads", loading=True) if self.loading else super().health()


def _whole(fields: dict[str, Any]) -> bytes:
    payload = json.dumps(fields).encode()
    return HEAD.encode() + b"content-length: %d\r\n\r\n" % len(payload) + payload


def check_come_again(headers: Mapping[str, str], least: int = 1, most: int = 1) -> None:
    """What every client obeys, and what OpenAI's looks at first: within a quarter of it."""
    seconds = int(headers["retry-after"])
    assert least <= seconds <= most
    assert 0.7 * (seconds - 1) * 1000 < int(headers["retry-after-ms"]) <= 1.25 * seconds * 1000
    assert headers["x-should-retry"] == "true"


@contextmanager
def connected(live: Live) -> Iterator[socket.socket]:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(10)
        connection.connect((host, int(port)))
        yield connection


def rest(connection: socket.socket) -> bytes:
    """All that still comes, to the end of the connection, however it ends."""
    found = b""
    try:
        while data := connection.recv(1 << 16):
            found += data
    except ConnectionResetError:
        pass
    return found


def count(live: Live, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(live.http.get("/metrics").text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    raise AssertionError(f"there is no {name} {labels}")


@pytest.mark.parametrize("state", ["loading", "draining", "engine_dead"])
def test_work_is_refused_before_its_body_is_read(state: str) -> None:
    client = Starting(step_seconds=0.05, reply="x" * 400)
    client.loading = state == "loading"
    with Live(client, shutdown_seconds=0.5) as live, connected(live) as other, connected(live) as connection:
        if state == "engine_dead":
            client.dead = "a device fault"
        elif state == "draining":
            other.sendall(_whole(body()))
            assert eventually(lambda: bool(client.alive))
            live.cancel()
            assert eventually(lambda: live.http.get("/ready").status_code == 503, 0.1), "no probe sends more clients"
        connection.sendall(HEAD.encode() + b"content-length: 1000\r\n\r\n")
        answer = b""
        while b"}}" not in answer:
            data = connection.recv(4096)
            assert data, answer
            answer += data
        assert answer.startswith(b"HTTP/1.1 503")
        assert f'"code":"{state}"'.encode() in answer
        assert b"x-should-retry: true" in answer
        refused = live.http.post(TEXT, content=b"no JSON", headers={"content-type": "application/json"})
        assert check_error(refused)["code"] == state
        check_come_again(refused.headers)


def test_a_model_that_has_loaded_is_served() -> None:
    client = Starting()
    with Live(client) as live:
        for path in ("/health", "/ready", "/ping"):
            assert check_error(live.http.get(path))["code"] == "loading"
        for path in ("/v1/models", "/v1/models/tiny", "/version", "/metrics"):
            assert live.http.get(path).status_code == 200
        client.loading = False
        assert live.http.get("/ready").status_code == 200
        assert live.http.post(TEXT, json=body()).status_code == 200


def test_a_full_queue_says_when_to_come_again() -> None:
    client = PlainClient(error=Overloaded("the queue is full: 3 requests wait"), fail_at=0)
    with Live(client) as live:
        for streaming in (False, True):
            refused = live.http.post(TEXT, json=body(stream=streaming))
            assert refused.status_code == 503
            assert check_error(refused)["code"] == "server_overloaded"
            check_come_again(refused.headers)
        assert count(live, "corekit_admission_rejections_total", reason="queue_full") == 2


def _admission(**options: Any) -> Admission:
    async def main() -> Admission:
        return Admission(PlainClient(), HttpOptions(**options), Drain())

    return asyncio.run(main())


def test_when_to_come_again_follows_how_long_others_waited() -> None:
    admission = _admission()
    assert admission.retry_seconds == 1.0
    for waited, least, most in ((0.01, 1.0, 1.0), (8.0, 7.9, 8.0), (1000.0, 30.0, 30.0), (8.0, 8.0, 8.1)):
        for _ in range(100):
            admission.answered(waited)
        admission.answered(None)
        assert least <= admission.retry_seconds <= most
        check_come_again(retry_headers(admission.retry_seconds), round(least), 30)


def test_a_key_has_its_share() -> None:
    client = PlainClient(endless=True, step_seconds=0.01)
    alice, bob = ({"authorization": f"Bearer {key}"} for key in ("key-of-alice", "key-of-bob"))
    with Live(client, keys={"alice": "key-of-alice", "bob": "key-of-bob"}, max_requests_per_key=2) as live, ExitStack() as open_ones:
        one, _, _ = (open_ones.enter_context(live.http.stream("POST", TEXT, json=body(stream=True), headers=headers)) for headers in (alice, alice, bob))
        refused = live.http.post(TEXT, json=body(), headers=alice)
        assert refused.status_code == 429
        error = check_error(refused)
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limited")
        assert "max_requests_per_key" in error["message"]
        check_come_again(refused.headers)
        with live.http.stream("POST", TEXT, json=body(stream=True), headers=bob) as second_of_bob:
            assert second_of_bob.status_code == 200
        one.close()

        def has_room() -> bool:
            with live.http.stream("POST", TEXT, json=body(stream=True), headers=alice) as again:
                return again.status_code == 200

        assert eventually(has_room), "a request that has ended makes room"
        assert len(client.alive) <= 3
    assert eventually(lambda: not client.alive)


def test_a_share_needs_keys() -> None:
    with pytest.raises(OptionsError, match="max_requests_per_key needs keys"):
        HttpOptions(max_requests_per_key=1)


def test_a_share_is_given_back_whatever_happens() -> None:
    admission = _admission(keys={"alice": "key-of-alice"}, max_requests_per_key=1)
    for fault in (ValueError(), ApiError(400, "wrong"), asyncio.CancelledError()):
        with suppress(type(fault)), admission.seat("alice"):
            with pytest.raises(ApiError), admission.seat("alice"):
                pass
            raise fault
    for _ in range(3):
        with admission.seat(""), admission.seat(""):
            pass


def _late(live: Live, **more: Any) -> httpx.Response:
    response = live.http.post(TEXT, json=body(**more))
    assert eventually(lambda: not live._client.alive, 0.5), "the engine is told at once"  # type: ignore[attr-defined]
    return response


@pytest.mark.parametrize("streaming", [False, True])
def test_a_first_token_that_comes_too_late(streaming: bool) -> None:
    with Live(PlainClient(step_seconds=5), first_token_seconds=0.1) as live:
        response = _late(live, stream=streaming, n=2)
        assert response.status_code == 408
        error = check_error(response)
        assert (error["type"], error["code"]) == ("timeout_error", "first_token_timeout")
        assert response.headers["x-should-retry"] == "false"
        assert count(live, "corekit_deadlines_missed_total", deadline="first_token") == 1
        assert count(live, "corekit_deadlines_missed_total", deadline="total") == 0


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_that_takes_too_long(streaming: bool) -> None:
    with Live(PlainClient(step_seconds=0.02, endless=True), first_token_seconds=0.15, total_seconds=0.3) as live:
        response = _late(live, stream=streaming)
        if streaming:
            assert response.status_code == 200
            found = events(response.text)
            error = json.loads(found[-1])["error"]
            assert len(found) > 3, "its first token was in time, and so were others"
        else:
            assert response.status_code == 408
            error = check_error(response)
        assert (error["type"], error["code"]) == ("timeout_error", "total_timeout")
        assert count(live, "corekit_deadlines_missed_total", deadline="total") == 1
        assert count(live, "corekit_stream_errors_total") == streaming


def test_without_deadlines_nothing_is_late() -> None:
    with Live(PlainClient(step_seconds=0.1, reply="abc"), first_token_seconds=0, total_seconds=0) as live:
        assert live.http.post(TEXT, json=body()).json()["choices"][0]["text"] == "abc"


def test_a_stream_that_nobody_reads_ends_at_its_deadline_and_never_looks_complete() -> None:
    client = PlainClient(step_seconds=0, endless=True)
    with Live(client, total_seconds=0.5) as live, connected(live) as connection:
        connection.sendall(_whole(body(stream=True, n=16, logprobs=20)))
        assert eventually(lambda: bool(client.alive))
        assert eventually(lambda: not client.alive, 3.0), "the engine is told, whether the client reads or not"
        time.sleep(1.5)
        found = rest(connection)
        assert found.startswith(b"HTTP/1.1 200")
        assert not found.endswith(b"0\r\n\r\n"), "it was cut, and its reader can see that"
        assert live.http.get("/health").status_code == 200


def test_a_body_on_its_way_does_not_hold_the_end() -> None:
    with Live(PlainClient(), shutdown_seconds=20) as live, connected(live) as connection:
        connection.sendall(HEAD.encode() + b'content-length: 100\r\n\r\n{"model"')
        assert eventually(lambda: live.http.get("/health").status_code == 200)
        began = time.monotonic()
        live.cancel()
        answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b'"code":"draining"' in answer
        live.stop()
        assert time.monotonic() - began < 8


class Counted:
    """A client's iterator that counts what was taken of it."""

    def __init__(self) -> None:
        self.num_taken = 0

    def __aiter__(self) -> Counted:
        return self

    async def __anext__(self) -> RequestOutput:
        await asyncio.sleep(0)
        self.num_taken += 1
        return RequestOutput(request_id="r", prompt=None, num_prompt_tokens=1, num_cached_tokens=0, outputs=(), finished=False)


@pytest.mark.parametrize("num_streams", [1, 3])
def test_news_that_nobody_takes_stay_where_they_are_merged(num_streams: int) -> None:
    async def main() -> int:
        streams = [Counted() for _ in range(num_streams)]
        news = _merged(streams)
        await anext(news)
        for _ in range(500):
            await asyncio.sleep(0)
        await news.aclose()
        return sum(stream.num_taken for stream in streams)

    assert asyncio.run(main()) <= 1 + 2 * num_streams

"""The server's life: address, keys, clients that leave, draining, counts, and bytes that are not HTTP."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from corekit_openai_http import HttpOptions
from corekit_openai_http.app import routes
from corekit_openai_http.drain import Drain
from corekit_openai_http.frontend import AcceptFailures, OpenAiHttp
from corekit_openai_http.gate import OPEN_PATHS
from corekit_openai_http.metrics import Meters
from corekit_openai_http.shared import Shared
from http_live import MODEL, Live, PlainClient, check_error, events, eventually
from prometheus_client.parser import text_string_to_metric_families

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def body(path: str = TEXT, **fields: Any) -> dict[str, Any]:
    prompt = {"prompt": "hi"} if path == TEXT else {"messages": [{"role": "user", "content": "hi"}]}
    return {"model": MODEL, **prompt, **fields}


@pytest.fixture(autouse=True)
def no_tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO)
    yield
    assert not [record for record in caplog.records if record.exc_info]
    assert not [record for record in caplog.records if record.name.startswith("uvicorn") and record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "options",
    [
        {"port": -1},
        {"port": 65536},
        {"max_body_bytes": 1},
        {"max_body_bytes": 2**31},
        {"max_n": 0},
        {"max_n": 129},
        {"max_prompts": 0},
        {"max_choices": 0},
        {"max_answer_entries": 2**33},
        {"keep_alive_seconds": -1},
        {"shutdown_seconds": float("nan")},
        {"shutdown_seconds": float("inf")},
        {"body_seconds": 0},
        {"idle_seconds": 0},
        {"head_seconds": 3601},
        {"refused_body_seconds": float("inf")},
        {"host": ""},
        {"api_keys": ("",)},
        {"api_keys": ("with space ",)},
        {"served_model_names": (" ",)},
    ],
)
def test_options_have_bounds(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        HttpOptions(**options)


def test_keys_are_not_in_the_options_text() -> None:
    assert "hunter2" not in repr(HttpOptions(api_keys=("hunter2",)))


def test_a_busy_port_is_one_clear_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}: address already in use"):
            asyncio.run(OpenAiHttp(HttpOptions(port=port)).serve(PlainClient()))


@pytest.mark.parametrize("host", ["not a host", "a" * 70, "a..b", "a\0b"])
def test_a_host_that_does_not_exist_is_one_clear_error(host: str) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {host[:60]}:1"):
        OpenAiHttp(HttpOptions(host=host, port=1)).bind()


def test_a_port_can_be_used_again_at_once() -> None:
    with Live(PlainClient()) as live:
        port = int(live.url.rpartition(":")[2])
        assert live.http.post(TEXT, json=body()).status_code == 200
    with Live(PlainClient(), port=port) as live:
        assert live.http.get("/health").status_code == 200


def test_running_out_of_descriptors_is_one_warning_and_passes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    num_failed = 0

    def fails(listener: socket.socket) -> Any:
        nonlocal num_failed
        num_failed += 1
        raise OSError(errno.EMFILE, "Too many open files")

    with Live(PlainClient()) as live:
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "accept", fails)
            host, port = live.url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port))):
                assert eventually(lambda: num_failed > 0)
                time.sleep(0.1)
                assert num_failed <= 128
                assert eventually(lambda: num_failed > 128), "it tries again"
                assert [record.getMessage() for record in caplog.records if "accept" in record.getMessage()] == [
                    "openai-http cannot accept connections: Too many open files. They wait until others close. Allow more open files (ulimit -n)"
                ]
        assert live.http.get("/health").status_code == 200


def test_other_errors_of_the_loop_are_told_as_before(caplog: pytest.LogCaptureFixture) -> None:
    told: list[dict[str, Any]] = []
    loop = asyncio.new_event_loop()
    AcceptFailures(loop)(loop, {"message": "of the loop itself"})
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == ["of the loop itself"]
    loop.set_exception_handler(lambda loop, context: told.append(context))
    failures = AcceptFailures(loop)
    for context in ({"message": "x"}, {"exception": OSError(errno.EMFILE, "no")}, {"socket": 1, "exception": OSError(errno.EBADF, "no")}):
        failures(loop, context)
        assert told.pop() is context
    loop.close()


def test_two_servers_in_one_process_have_their_own_models_and_counts() -> None:
    with Live(PlainClient()) as one, Live(PlainClient(), served_model_names=("a", "b")) as two:
        assert [card["id"] for card in two.http.get("/v1/models").json()["data"]] == ["a", "b"]
        assert two.http.post(TEXT, json=body()).status_code == 404
        assert two.http.post(TEXT, json=body() | {"model": "b"}).json()["model"] == "b"
        assert one.http.post(TEXT, json=body()).status_code == 200
        assert _metrics(one)["http_requests_total", TEXT, "POST", "404"] == 0
        assert _metrics(two)["http_requests_total", TEXT, "POST", "404"] == 1


def _table() -> list[tuple[str, str]]:
    async def build() -> list[tuple[str, str]]:
        client = PlainClient()
        table = routes(Shared(client, HttpOptions(), Meters(HttpOptions()), Drain()))
        return [(method, route.path.replace("{name:path}", "x")) for route in table for method in route.methods or ()]

    return asyncio.run(build())


WRONG = (None, "", "Bearer", "Bearer wrong", "Bearer first-ke", "Bearer first-keyy", "first-key", "Basic first-key", "Bearer ü")


def test_every_route_needs_a_key_unless_it_is_listed() -> None:
    keys = ("first-key", "second-key")
    tries = [*_table(), ("GET", "/nowhere"), ("OPTIONS", TEXT), ("GET", "/health/"), ("GET", "/v1//models")]
    assert len(tries) > 10
    with Live(PlainClient(), api_keys=keys) as live:
        for method, path in tries:
            for authorization in WRONG:
                headers = {} if authorization is None else {"authorization": authorization.encode()}
                response = live.http.request(method, path, headers=headers)  # type: ignore[arg-type]
                if path in OPEN_PATHS:
                    assert response.status_code == 200
                    continue
                assert response.status_code == 401, (method, path, authorization)
                assert response.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":
                    assert check_error(response)["code"] == "invalid_api_key"
            for key in keys:
                assert live.http.request(method, path, headers={"authorization": f"Bearer {key}"}).status_code != 401
        assert {path for _, path in tries if path in OPEN_PATHS} == OPEN_PATHS


def _read_a_little(leaver: httpx.Client, fields: dict[str, Any]) -> None:
    try:
        with leaver.stream("POST", TEXT, json=fields) as response:
            assert response.status_code == 200
            assert len(list(itertools.islice(response.iter_raw(), 5))) == 5
    except httpx.ReadTimeout:
        assert not fields["stream"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("more", [{}, {"n": 3}, {"prompt": ["a", "b", "c", "d"]}])
def test_a_client_that_leaves_ends_its_request(streaming: bool, more: dict[str, Any]) -> None:
    client = PlainClient(step_seconds=0.01, reply="x" * 400)
    with Live(client) as live:
        fields = body(stream=streaming, max_tokens=400) | more
        with httpx.Client(base_url=live.url, timeout=0.15, verify=False) as leaver:
            _read_a_little(leaver, fields)
        began = time.monotonic()
        assert eventually(lambda: client.seen and not client.alive)
        assert time.monotonic() - began < 2
        assert client.num_aborted == (len(more["prompt"]) if "prompt" in more else 1)
        client.reply = "ok"
        assert live.http.post(TEXT, json=body()).json()["choices"][0]["text"] == "ok"


def test_clients_that_leave_at_random_points_leave_nothing_behind() -> None:
    client = PlainClient(step_seconds=0.002, reply="x" * 100)
    rng = random.Random(0)
    with Live(client) as live:
        host, port = live.url.removeprefix("http://").split(":")

        def leave(seed: int) -> None:
            rng = random.Random(seed)
            payload = httpx.Request("POST", live.url + TEXT, json=body(stream=rng.random() < 0.5, n=rng.choice((1, 3)), max_tokens=100)).read()
            head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n".encode()
            with socket.create_connection((host, int(port))) as connection:
                whole = head + payload
                connection.sendall(whole[: rng.choice((0, 10, len(head), len(whole) - 1, len(whole), len(whole)))])
                time.sleep(rng.random() * 0.1)

        for _ in range(3):
            threads = [threading.Thread(target=leave, args=(rng.random(),)) for _ in range(24)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert eventually(lambda: not client.alive, 1.0)
        assert client.num_aborted > 0
        assert live.http.post(TEXT, json=body()).status_code == 200


def _in_background(live: Live, path: str, fields: dict[str, Any]) -> tuple[threading.Thread, list[httpx.Response]]:
    found: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: found.append(httpx.post(live.url + path, json=fields, timeout=20, verify=False)))
    thread.start()
    return thread, found


def test_draining_finishes_what_is_in_flight_and_refuses_the_rest() -> None:
    client = PlainClient(step_seconds=0.02, reply="x" * 30)
    with Live(client, shutdown_seconds=10) as live:
        running = [_in_background(live, path, body(path, stream=streaming, max_tokens=30)) for path in (TEXT, CHAT) for streaming in (False, True)]
        assert eventually(lambda: len(client.alive) == 4)
        live.cancel()
        assert eventually(lambda: live.http.post(TEXT, json=body()).status_code == 503, 1.0)
        refused = live.http.post(TEXT, json=body())
        assert check_error(refused)["code"] == "draining"
        assert refused.headers["retry-after"]
        assert live.http.get("/health").status_code == 200
        began = time.monotonic()
        for thread, _ in running:
            thread.join()
        live.stop()
        assert time.monotonic() - began < 8
        for _, responses in running:
            (response,) = responses
            assert response.status_code == 200
            assert "x" in response.text
            if response.headers["content-type"].startswith("text/event-stream"):
                assert events(response.text)[-1] == "[DONE]"
    assert client.num_aborted == 0


@pytest.mark.parametrize("twice", [False, True])
def test_past_the_deadline_streams_end_with_an_error_event(twice: bool) -> None:
    client = PlainClient(step_seconds=0.02, reply="x" * 400)
    with Live(client, shutdown_seconds=30 if twice else 0.2) as live:
        running = [_in_background(live, path, body(path, stream=streaming, max_tokens=400)) for path in (TEXT, CHAT) for streaming in (False, True)]
        assert eventually(lambda: len(client.alive) == 4)
        time.sleep(0.1)
        began = time.monotonic()
        live.cancel()
        if twice:
            time.sleep(0.1)
            live.cancel()
        live.stop()
        assert time.monotonic() - began < 5
        for thread, responses in running:
            thread.join()
            (response,) = responses
            if response.headers["content-type"] == "application/json":
                assert response.status_code == 503
                assert check_error(response)["code"] == "draining"
            else:
                found = events(response.text)
                assert '"code":"draining"' in found[-1]
                assert "[DONE]" not in found
    assert not client.alive
    assert client.num_aborted == 4
    assert live.error is None


def test_a_client_that_does_not_read_cannot_hold_the_end() -> None:
    client = PlainClient(step_seconds=0, reply="x" * 50_000)
    with Live(client, shutdown_seconds=0.1) as live:
        host, port = live.url.removeprefix("http://").split(":")
        payload = httpx.Request("POST", live.url + TEXT, json=body(stream=True, n=16, logprobs=20, max_tokens=50_000)).read()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect((host, int(port)))
            head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
            connection.sendall(head.encode() + payload)
            time.sleep(0.5)
            assert client.alive
            began = time.monotonic()
            live.stop()
            assert time.monotonic() - began < 4
    assert not client.alive


def test_health_follows_the_engine() -> None:
    client = PlainClient()
    with Live(client) as live:
        assert live.http.get("/health").status_code == 200
        client.dead = "a device fault"
        response = live.http.get("/health")
        assert response.status_code == 503
        assert check_error(response)["code"] == "engine_dead"


def _metrics(live: Live) -> dict[tuple[str, ...], float]:
    page = live.http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(page.text)
    samples = [(sample, [value for label, value in sample.labels.items() if label != "model_name"]) for family in families for sample in family.samples]
    return defaultdict(float, {(sample.name, *values): sample.value for sample, values in samples})


def test_metrics_parse_and_count() -> None:
    client = PlainClient(reply="abc")
    with Live(client) as live:
        live.http.post(CHAT, json=body(CHAT, stream=True))
        live.http.post(TEXT, json=body(n=2))
        live.http.get("/secret-token/path")
        live.http.request("BREW", "/v1/models/user-text")
        found = _metrics(live)
        assert found[("corekit_num_requests_running",)] == 0
        assert found[("corekit_num_requests_waiting",)] == 0
        assert found[("corekit_kv_cache_usage_perc",)] == 0.25
        assert found[("corekit_prompt_tokens_total",)] == 11
        assert found[("corekit_generation_tokens_total",)] == 22
        assert found[("corekit_num_preemptions_total",)] == 3
        assert found["corekit_request_success_total", "stop"] == 4
        assert found["corekit_request_success_total", "error"] == 0
        assert found["http_requests_total", CHAT, "POST", "200"] == 1
        assert found["http_requests_total", "other", "GET", "404"] == 1
        assert found[("corekit_time_to_first_token_seconds_count",)] == 2
        assert found[("corekit_e2e_request_latency_seconds_count",)] == 2
        assert found[("corekit_inter_token_latency_seconds_count",)] == 2 + 2 * 3
        text = live.http.get("/metrics").text
        assert not any(word in text for word in ("secret-token", "user-text", "BREW"))


def test_the_request_log_holds_no_prompt(caplog: pytest.LogCaptureFixture) -> None:
    with Live(PlainClient(), log_requests=True) as live:
        live.http.post(TEXT, json=body(user="alice") | {"prompt": "my secret"}, headers={"x-request-id": "r1"})
        live.http.get("/a\u202eb?q=secret")
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("corekit")]
    assert any("POST /v1/completions 200" in line and line.endswith("r1") for line in lines)
    assert not any("secret" in line or "alice" in line or "\u202e" in line for line in lines)


def _raw(live: Live, data: bytes) -> bytes:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except (ConnectionResetError, BrokenPipeError):
            return b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"GET http://[::1 HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nbad header\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_an_error_in_form(data: bytes) -> None:
    with Live(PlainClient()) as live:
        answer = _raw(live, data)
        if answer:
            head, _, content = answer.partition(b"\r\n\r\n")
            assert head.split(b" ")[1] == b"400"
            assert b"content-type: application/json" in head
            assert content.startswith(b'{"error":')
        assert live.http.get("/health").status_code == 200


def test_an_endless_head_is_cut() -> None:
    with Live(PlainClient()) as live:
        host, port = live.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nx: ")
            sent = 0
            with pytest.raises(OSError):  # noqa: PT012
                while sent < 64 * 2**20:
                    sent += connection.send(b"y" * 65536)
            assert sent < 16 * 2**20
        assert live.http.get("/health").status_code == 200


def test_a_slow_body_is_given_up() -> None:
    with Live(PlainClient(), body_seconds=0.1) as live:
        host, port = live.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{{".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_a_head_request_and_a_kept_connection() -> None:
    with Live(PlainClient()) as live:
        assert live.http.head("/health").status_code == 200
        for _ in range(3):
            assert live.http.post(TEXT, json=body()).status_code == 200
            assert live.http.post(TEXT, content=b"{", headers={"content-type": "application/json"}).status_code == 400

"""The administrator's routes: there with a key of their own only, which opens nothing else; drain, resume, abort, reset."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from http_live import MODEL, Live, PlainClient, check_error, eventually

from corekit.api import EngineDead, Health, RequestFailed

TEXT, ADMIN = "/v1/completions", {"authorization": "Bearer admins-key"}
PATHS = ("/admin/reset_prefix_cache", "/admin/drain", "/admin/resume", "/admin/abort")
OTHERS = ("/v1/models", "/metrics", "/nowhere", "/admin", "/v1/completions")
BODY = {"model": MODEL, "prompt": "hi", "max_tokens": 4}
KEY = {"authorization": "Bearer users-key"}


@pytest.fixture(scope="module")
def client() -> PlainClient:
    return PlainClient()


@pytest.fixture(scope="module")
def live(client: PlainClient) -> Iterator[Live]:
    with Live(client, admin_key="admins-key", api_keys=("users-key",), shutdown_seconds=1) as started:
        yield started


@pytest.fixture
def endless(client: PlainClient) -> Iterator[PlainClient]:
    client.endless, client.step_seconds = True, 0.005
    yield client
    client.endless, client.step_seconds = False, 0.0


def test_without_a_key_of_their_own_there_are_none() -> None:
    for keys, headers in (((), {}), (("users-key",), KEY)):
        with Live(PlainClient(), api_keys=keys) as live:
            for path in PATHS:
                answer = live.http.post(path, json={}, headers=headers)
                assert (answer.status_code, check_error(answer)["code"]) == (404, "not_found")


@pytest.mark.parametrize("keys", [(), ("users-key",)])
def test_only_the_administrators_key_opens_them(keys: tuple[str, ...]) -> None:
    with Live(PlainClient(), admin_key="admins-key", api_keys=keys) as live:
        for path in (*PATHS, "/admin/nowhere", "/%61dmin/drain"):
            for headers in ({}, KEY, {"authorization": "Bearer"}, {"authorization": "Bearer admins-ke"}, {"authorization": "Basic admins-key"}):
                for method in ("GET", "POST", "OPTIONS"):
                    answer = live.http.request(method, path, headers=headers)
                    assert (answer.status_code, check_error(answer)["code"]) == (401, "invalid_api_key"), (path, headers, method)
            assert live.http.get(path, headers=ADMIN).status_code == (404 if path.endswith("nowhere") else 405)
        assert live.http.get("/ready").status_code == 200, "nothing was done"


def test_it_opens_nothing_else(live: Live) -> None:
    for path in OTHERS:
        assert live.http.get(path, headers=ADMIN).status_code == 401, path


def test_who_asks_for_what_is_not_there_does_not_hear_of_them(live: Live) -> None:
    assert "/admin" not in check_error(live.http.get("/nowhere", headers=KEY))["message"]


def test_they_take_post_alone(live: Live) -> None:
    assert [live.http.get(path, headers=ADMIN).headers["allow"] for path in PATHS] == ["POST"] * len(PATHS)


def test_drain_and_resume(live: Live, endless: PlainClient) -> None:
    """What runs goes on; new work and /ready are refused, /health and the models are not; resume takes all that back."""
    with live.http.stream("POST", TEXT, json=BODY | {"stream": True}, headers=KEY) as running:
        news = running.iter_lines()
        next(news)
        answer = live.http.post("/admin/drain", headers=ADMIN)
        assert (answer.status_code, answer.json()) == (200, {"status": "draining", "num_requests": 1})
        for path, refused in ((TEXT, live.http.post(TEXT, json=BODY, headers=KEY)), ("/ready", live.http.get("/ready"))):
            assert (refused.status_code, check_error(refused)["code"]) == (503, "draining"), path
            assert refused.headers["retry-after"]
        assert live.http.get("/health").status_code == live.http.get("/v1/models", headers=KEY).status_code == 200
        assert live.http.post("/admin/drain", headers=ADMIN, json={}).status_code == 200
        assert [line for _, line in zip(range(4), news, strict=False) if line], "it goes on"
        answer = live.http.post("/admin/resume", headers=ADMIN)
        assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    assert live.http.get("/ready").status_code == 200
    endless.endless = False
    assert live.http.post(TEXT, json=BODY, headers=KEY).status_code == 200


def test_a_server_that_drains_stops_when_it_is_told(client: PlainClient) -> None:
    with Live(client, admin_key="admins-key") as live:
        live.http.post("/admin/drain", headers=ADMIN)
        live.stop()
        assert live.error is None


def test_a_server_that_stops_cannot_be_resumed(endless: PlainClient) -> None:
    with Live(endless, admin_key="admins-key", shutdown_seconds=30) as live, live.http.stream("POST", TEXT, json=BODY | {"stream": True}) as running:
        news = running.iter_lines()  # a reader that is dropped closes the connection
        next(news)
        with httpx.Client(base_url=live.url) as beside:
            assert beside.get("/ready").status_code == 200
            live.cancel()
            assert eventually(lambda: beside.get("/ready").status_code == 503)
            answer = beside.post("/admin/resume", headers=ADMIN)
            assert (answer.status_code, check_error(answer)["code"]) == (409, "stopping")
            assert beside.post("/admin/abort", headers=ADMIN, json={"all": True}).json() == {"num_requests": 1}
    assert not endless.alive


def in_background(live: Live, count: int, **headers: str) -> tuple[list[threading.Thread], list[httpx.Response]]:
    """That many requests on their way, and where their answers will be."""
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(httpx.post(live.url + TEXT, json=BODY, headers=KEY | headers, timeout=20))) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, answers


def test_abort_by_id(live: Live, endless: PlainClient) -> None:
    """All requests of that id end with an error, and no other does."""
    threads, answers = in_background(live, 2, **{"x-request-id": "mine"})
    with live.http.stream("POST", TEXT, json=BODY | {"stream": True, "request_id": "other"}, headers=KEY) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert eventually(lambda: len(endless.alive) == 3)
        assert live.http.post("/admin/abort", headers=ADMIN, json={"request_id": "mine"}).json() == {"num_requests": 2}
        for thread in threads:
            thread.join(10)
        assert [(answer.status_code, check_error(answer)["code"], answer.headers["x-should-retry"]) for answer in answers] == [(500, "aborted", "false")] * 2
        assert len(endless.alive) == 1
        assert live.http.post("/admin/abort", headers=ADMIN, json={"request_id": "mine"}).json() == {"num_requests": 0}
        assert live.http.post("/admin/abort", headers=ADMIN, json={"request_id": "other"}).json() == {"num_requests": 1}
        *_, last = [line for line in lines if line]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "aborted", "a stream says so, and has no [DONE]"
    assert not endless.alive


def test_abort_of_all(live: Live, endless: PlainClient) -> None:
    threads, answers = in_background(live, 3)
    assert eventually(lambda: len(endless.alive) == 3)
    assert live.http.post("/admin/abort", headers=ADMIN, json={"all": True}).json() == {"num_requests": 3}
    for thread in threads:
        thread.join(10)
    assert [answer.status_code for answer in answers] == [500] * 3
    assert not endless.alive


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("abort", {}, "request_id"),
        ("abort", {"all": False}, "request_id"),
        ("abort", {"all": True, "request_id": "x"}, "request_id"),
        ("abort", {"request_id": "a b"}, "request_id"),
        ("abort", {"request_id": ""}, "request_id"),
        ("abort", {"request_id": 7}, "request_id"),
        ("abort", {"all": "yes"}, "all"),
        ("abort", {"al": True}, "al"),
        ("drain", {"seconds": 3}, "seconds"),
        ("resume", {"x": 1}, "x"),
        ("reset_prefix_cache", {"x": 1}, "x"),
    ],
)
def test_bodies_that_are_refused(live: Live, path: str, body: dict[str, Any], param: str) -> None:
    answer = live.http.post(f"/admin/{path}", headers=ADMIN, json=body)
    assert (answer.status_code, check_error(answer)["param"]) == (400, param)
    assert live.http.post(f"/admin/{path}", headers=ADMIN, content=b"{").status_code == 415
    assert live.http.post(f"/admin/{path}", headers=ADMIN | {"content-type": "application/json"}, content=b"{").status_code == 400
    assert live.http.get("/ready").status_code == 200


def test_reset_of_the_prefix_cache(live: Live, client: PlainClient) -> None:
    before = client.num_resets
    for sent in ({}, {"json": {}}):
        answer = live.http.post("/admin/reset_prefix_cache", headers=ADMIN, **sent)
        assert (answer.status_code, answer.json()) == (200, {"num_blocks": client.counts.memory.num_idle})
    assert client.num_resets == before + 2


@pytest.mark.parametrize(
    ("loading", "error", "status", "code"),
    [(True, None, 503, "loading"), (False, EngineDead("gone"), 503, "engine_dead"), (False, RequestFailed("cannot"), 500, "request_failed")],
)
def test_a_reset_that_fails(live: Live, client: PlainClient, monkeypatch: pytest.MonkeyPatch, loading: bool, error: Exception, status: int, code: str) -> None:
    async def fails() -> int:
        raise error

    monkeypatch.setattr(client, "health", lambda: Health(state="dead" if loading else "ready", loading=loading))
    monkeypatch.setattr(client, "reset_prefix_cache", fails)
    answer = live.http.post("/admin/reset_prefix_cache", headers=ADMIN)
    assert (answer.status_code, check_error(answer)["code"]) == (status, code)

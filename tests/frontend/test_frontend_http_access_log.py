"""One line for a request: its fields, how it ended, and what is never in it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from http_live import Live, PlainClient, eventually

from corekit.api import RequestFailed
from corekit.cli import log as cli_log

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
FIELDS = {"request_id", "method", "route", "status", "seconds"}
COUNTS = {"prompt_tokens", "cached_tokens", "output_tokens", "first_token_seconds", "finish_reason"}


class Lines(logging.Handler):
    """Lines as `corekit --log-format json` writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=cli_log._before(True), processors=cli_log._after(True, False)))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def objects(self, route: str) -> list[dict[str, Any]]:
        assert not any("\n" in line for line in self.lines)
        return [found for found in map(json.loads, self.lines) if found.get("route") == route]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    heard = Lines()
    logger = logging.getLogger("corekit.openai_http")
    logger.addHandler(heard)
    monkeypatch.setattr(logger, "level", logging.INFO)
    yield heard
    logger.removeHandler(heard)


def body(path: str, **fields: Any) -> dict[str, Any]:
    asked = {"prompt": "my secret"} if path == TEXT else {"messages": [{"role": "user", "content": "my secret"}]}
    return {"model": "tiny", **asked, **fields}


def test_whose_how_long_and_how_many(lines: Lines) -> None:
    with Live(PlainClient(reply="hidden answer"), log_requests=True, keys={"alice": "k1", "bob": "k2"}) as live:
        for number, (key, name, stream) in enumerate((("k2", "bob", False), ("k2", "bob", True), ("k1", "alice", False), ("k1", "alice", True))):
            heads = {"authorization": f"Bearer {key}", "x-request-id": f"{name}.{stream}"}
            assert live.http.post(CHAT, json=body(CHAT, user="mallory", stream=stream, n=2), headers=heads).status_code == 200
            assert eventually(lambda: len(lines.objects(CHAT)) == number + 1)  # noqa: B023  # a line follows its answer
        assert live.http.post(CHAT, json=body(CHAT), headers={"authorization": "Bearer nobody"}).status_code == 401
        assert eventually(lambda: len(lines.objects(CHAT)) == 5)
    *answered, refused = lines.objects(CHAT)
    for number, found in enumerate(answered):
        assert found.keys() >= FIELDS | COUNTS | {"tenant"}
        assert (found["method"], found["status"], found["finish_reason"]) == ("POST", 200, "stop")
        assert (found["tenant"], found["request_id"]) == [("bob", "bob.False"), ("bob", "bob.True"), ("alice", "alice.False"), ("alice", "alice.True")][number]
        assert found["cached_tokens"] == 1
        assert found["output_tokens"] == 2 * len("hidden answer0")
        assert found["prompt_tokens"] > 0
        assert 0 < found["first_token_seconds"] <= found["seconds"] + 0.001
    assert refused["status"] == 401
    assert not refused.keys() & (COUNTS | {"tenant"})
    assert not any(word in line for line in lines.lines for word in ("secret", "hidden", "mallory", "k1", "k2"))


def test_how_it_ended(lines: Lines) -> None:
    client = PlainClient(reply="a" * 50)
    with Live(client, log_requests=True) as live:
        assert live.http.post(TEXT, json=body(TEXT, max_tokens=3)).status_code == 200
        assert eventually(lambda: len(lines.objects(TEXT)) == 1)  # a line follows its answer
        assert live.http.post(TEXT, json=body(TEXT, temperature=-1)).status_code == 400
        assert eventually(lambda: len(lines.objects(TEXT)) == 2)
        client.fail_at, client.error = 4, RequestFailed("broken")
        assert live.http.post(TEXT, json=body(TEXT, max_tokens=9, stream=True)).status_code == 200
        assert eventually(lambda: len(lines.objects(TEXT)) == 3)
        client.fail_at, client.endless, client.step_seconds = None, True, 0.005
        with live.http.stream("POST", TEXT, json=body(TEXT, stream=True)) as stream:
            next(stream.iter_lines())
        assert eventually(lambda: len(lines.objects(TEXT)) == 4)
    length, wrong, error, left = lines.objects(TEXT)
    assert (length["finish_reason"], length["output_tokens"], length["status"]) == ("length", 3, 200)
    assert wrong["status"] == 400
    assert not wrong.keys() & COUNTS
    assert (error["finish_reason"], error["output_tokens"], error["status"]) == ("error", 4, 200)
    assert (left["finish_reason"], left["status"]) == ("abort", 200)
    assert left["output_tokens"] > 0
    assert all("tenant" not in found for found in (length, wrong, error, left))


def test_people_read_the_same(lines: Lines, caplog: pytest.LogCaptureFixture) -> None:
    with Live(PlainClient(reply="abc"), log_requests=True) as live:
        live.http.post(TEXT, json=body(TEXT, request_id="r-1"))
        assert eventually(lambda: len(caplog.records) == 1)
        live.http.get("/health")
        assert eventually(lambda: len(caplog.records) == 2)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("POST /v1/completions 200 0.")
    assert ", 9 prompt tokens (1 cached), 3 of output, first after 0." in first
    assert first.endswith(" s, stop, id r-1")
    assert second.startswith("GET /health 200 0.")


def test_it_is_off_where_nobody_asks_for_it(lines: Lines) -> None:
    with Live(PlainClient()) as live:
        assert live.http.post(TEXT, json=body(TEXT)).status_code == 200
    assert lines.lines == []

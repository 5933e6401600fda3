"""What the official client makes of every error: its exception, status, type, code and field, and how often it tries again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from conformance_rig import fronted
from wire_models import Recording, faults

from corekit.api import EngineDead, Overloaded, RequestFailed
from corekit.testing.fake_client import FakeClient

MODEL = "fake"
CHAT = "/v1/chat/completions"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
FIVE: Any = openai.InternalServerError


@dataclass
class Told:
    client: openai.OpenAI
    recording: Recording
    engine: FakeClient


@contextmanager
def told(engine: FakeClient | None = None, *, key: str = "good", retries: int = 0, **http: Any) -> Iterator[Told]:
    engine = engine or FakeClient()
    recording = Recording()
    with fronted(engine, api_keys=("good",), **http) as url:
        transport = httpx.Client(transport=recording, timeout=20)
        with openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=retries, http_client=transport) as client:
            yield Told(client, recording, engine)


@dataclass(frozen=True)
class Case:
    exception: type[openai.APIStatusError]
    status: int
    type: str
    code: str | None
    param: str | None


REFUSED: list[tuple[dict[str, Any], Case]] = [
    ({"temperature": 3}, Case(openai.BadRequestError, 400, "invalid_request_error", None, "temperature")),
    ({"n": 0}, Case(openai.BadRequestError, 400, "invalid_request_error", None, "n")),
    ({"n": 10**9}, Case(openai.BadRequestError, 400, "invalid_request_error", None, "n")),
    ({"top_logprobs": 1}, Case(openai.BadRequestError, 400, "invalid_request_error", None, "top_logprobs")),
    ({"messages": []}, Case(openai.BadRequestError, 400, "invalid_request_error", "empty_prompt", "messages")),
    ({"model": "gpt-none"}, Case(openai.NotFoundError, 404, "invalid_request_error", "model_not_found", "model")),
    ({"extra_body": {"nonsense": 1}}, Case(openai.BadRequestError, 400, "invalid_request_error", "unknown_parameter", "nonsense")),
    ({"audio": {"voice": "a", "format": "wav"}}, Case(openai.BadRequestError, 400, "invalid_request_error", "unsupported_parameter", "audio")),
    ({"stream_options": {"include_usage": True}}, Case(openai.BadRequestError, 400, "invalid_request_error", None, "stream_options")),
    ({"messages": [{"role": "user", "content": "x" * 4000}]}, Case(openai.APIStatusError, 413, "invalid_request_error", "request_too_large", None)),
    ({"extra_headers": {"content-type": "text/plain"}}, Case(openai.APIStatusError, 415, "invalid_request_error", "unsupported_media_type", None)),
]


def check(error: openai.APIStatusError, recording: Recording, case: Case, times: int = 1) -> None:
    assert isinstance(error, case.exception)
    assert Case(case.exception, error.status_code, error.type or "", error.code, error.param) == case
    assert [exchange.status for exchange in recording.exchanges] == [case.status] * times
    assert [faults(exchange) for exchange in recording.exchanges] == [[]] * times


def test_what_is_wrong_is_said_once() -> None:
    with told(retries=2, max_body_bytes=2048) as it:
        for fields, case in REFUSED:
            it.recording.exchanges.clear()
            with pytest.raises(case.exception) as raised:
                it.client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **fields})
            check(raised.value, it.recording, case)
        assert it.engine.seen == []


def test_keys_routes_and_methods() -> None:
    with told(key="bad", retries=2) as it:
        with pytest.raises(openai.AuthenticationError) as raised:
            it.client.models.list()
        check(raised.value, it.recording, Case(openai.AuthenticationError, 401, "authentication_error", "invalid_api_key", None))
    with told(retries=2) as it:
        with pytest.raises(openai.NotFoundError) as missing:
            it.client.embeddings.create(model=MODEL, input="x")
        check(missing.value, it.recording, Case(openai.NotFoundError, 404, "invalid_request_error", "not_found", None))
        it.recording.exchanges.clear()
        with pytest.raises(openai.APIStatusError) as method:
            it.client.get("/chat/completions", cast_to=object)
        check(method.value, it.recording, Case(openai.APIStatusError, 405, "invalid_request_error", "method_not_allowed", None))


FAILING: list[tuple[Exception, Case, int]] = [
    (Overloaded("the queue is full"), Case(FIVE, 503, "overloaded_error", "server_overloaded", None), 2),
    (EngineDead("the engine ended"), Case(FIVE, 503, "overloaded_error", "engine_dead", None), 2),
    (RequestFailed("the sampler raised"), Case(FIVE, 500, "server_error", "request_failed", None), 1),
]


@pytest.mark.parametrize(("fault", "case", "times"), FAILING, ids=lambda value: type(value).__name__)
def test_what_may_pass_is_tried_again_when_the_server_says_so(fault: Exception, case: Case, times: int) -> None:
    with told(FakeClient(error=fault, fail_at=0), retries=1) as it:
        began = time.monotonic()
        with pytest.raises(openai.InternalServerError) as raised:
            it.client.chat.completions.create(model=MODEL, messages=MESSAGES)
        waited = time.monotonic() - began
        check(raised.value, it.recording, case, times)
        headers = it.recording.exchanges[0].headers
        if times > 1:
            asked = float(headers["retry-after-ms"]) / 1000 if "retry-after-ms" in headers else float(headers["retry-after"])
            assert 1 <= float(headers["retry-after"]) <= 30
            assert 0.9 * asked <= waited <= asked + 2
        else:
            assert headers["x-should-retry"] == "false"


def test_a_fault_nobody_foresaw_is_one_500_without_internals(caplog: pytest.LogCaptureFixture) -> None:
    with told(FakeClient(error=ZeroDivisionError("the secret cause"), fail_at=0)) as it:
        with pytest.raises(openai.InternalServerError) as raised:
            it.client.chat.completions.create(model=MODEL, messages=MESSAGES)
        check(raised.value, it.recording, Case(FIVE, 500, "server_error", "internal_error", None))
        assert "secret" not in raised.value.message
        assert it.recording.exchanges[0].headers["x-request-id"] in raised.value.message


@pytest.mark.parametrize(
    "fault", [RequestFailed("the sampler raised"), EngineDead("the engine ended"), ZeroDivisionError("x")], ids=lambda fault: type(fault).__name__
)
@pytest.mark.parametrize("kind", ["completions", "chat", "responses"])
def test_a_fault_in_mid_stream_is_never_a_clean_end(fault: Exception, kind: str) -> None:
    """Completions and chat: the client raises. Responses: its last event says failed, or it raises."""
    with told(FakeClient(reply="hello world", error=fault, fail_at=4), retries=2) as it:
        create, prompt = {
            "completions": (it.client.completions.create, {"prompt": "hi"}),
            "chat": (it.client.chat.completions.create, {"messages": MESSAGES}),
            "responses": (it.client.responses.create, {"input": "hi"}),
        }[kind]
        received: list[Any] = []
        raised: openai.APIError | None = None
        try:
            for event in create(model=MODEL, stream=True, **prompt):  # type: ignore[operator]
                received.append(event)
        except openai.APIError as error:
            raised = error
        if kind == "responses" and raised is None:
            assert received[-1].type in ("response.failed", "error")
        else:
            assert isinstance(raised, openai.APIError)
            assert not isinstance(raised, openai.APIStatusError)
        assert len(received) >= 4
        (exchange,) = it.recording.exchanges
        assert (exchange.status, faults(exchange)) == (200, [])
        assert b"[DONE]" not in exchange.body


def test_a_request_over_its_key_s_limit_is_429_and_tried_again() -> None:
    with told(FakeClient(endless=True, reply="x", step_seconds=0.01), max_requests_per_key=1, retries=1) as it:
        stream = it.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as raised:
            it.client.chat.completions.create(model=MODEL, messages=MESSAGES)
        stream.close()
        assert (raised.value.type, raised.value.code) == ("rate_limit_error", "rate_limited")
        assert [exchange.status for exchange in it.recording.exchanges] == [200, 429, 429]
        assert float(it.recording.exchanges[1].headers["retry-after"]) >= 1


def test_a_deadline_before_the_first_byte_is_408() -> None:
    with told(FakeClient(step_seconds=5), first_token_seconds=0.2) as it:
        with pytest.raises(openai.APIStatusError) as raised:
            it.client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert (raised.value.status_code, raised.value.type) == (408, "timeout_error")
        assert [faults(exchange) for exchange in it.recording.exchanges] == [[]]

"""Answers on the wire: order of events, shapes of logprobs, usage, failures before and within a stream."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import aclosing
from typing import Any

import pytest
from corekit_openai_http.answer import _merged
from http_live import MODEL, Live, PlainClient, check_error, events
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from corekit.api import EngineDead, FinishReason, InvalidRequest, Overloaded, RequestFailed, RequestOutput

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def body(path: str, **fields: Any) -> dict[str, Any]:
    prompt = {"prompt": "hi"} if path == TEXT else {"messages": [{"role": "user", "content": "hi"}]}
    return {"model": MODEL, **prompt, **fields}


def stream(live: Live, path: str, **fields: Any) -> list[dict[str, Any]]:
    response = live.http.post(path, json=body(path, stream=True, **fields))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"]
    found = events(response.text)
    assert found.count("[DONE]") == 1
    assert found[-1] == "[DONE]"
    return [json.loads(event) for event in found[:-1]]


def check_chunks(path: str, chunks: list[dict[str, Any]]) -> None:
    """The official client's models take every chunk as it is, without unknown fields; one id, one time, one finish per choice."""
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    for chunk in chunks:
        parsed: Any
        if path == CHAT:
            parsed = ChatCompletionChunk.model_validate(chunk, strict=True)
        else:  # the client's model of a completion knows no chunk that is not the last
            choices = [choice | {"finish_reason": choice["finish_reason"] or "stop"} for choice in chunk["choices"]]
            parsed = Completion.model_validate(chunk | {"choices": choices}, strict=True)
        assert not parsed.model_extra
        assert all(not choice.model_extra for choice in parsed.choices)
    finishes = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(finishes) == sorted(set(finishes))
    assert set(finishes) == {choice["index"] for chunk in chunks for choice in chunk["choices"]}


def texts(path: str, chunks: list[dict[str, Any]]) -> dict[int, str]:
    joined: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            piece = choice["text"] if path == TEXT else choice["delta"].get("content", "")
            joined[choice["index"]] = joined.get(choice["index"], "") + piece
    return joined


def test_order_of_a_chat_stream(live: Live) -> None:
    chunks = stream(live, CHAT, n=2)
    check_chunks(CHAT, chunks)
    deltas: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in chunks:
        assert "usage" not in chunk
        (choice,) = chunk["choices"]
        deltas[choice["index"]].append((choice["delta"], choice["finish_reason"]))
    for index in (0, 1):
        assert deltas[index][0] == ({"role": "assistant", "content": ""}, None)
        assert deltas[index][-1] == ({}, "stop")
        assert all(set(delta) == {"content"} and reason is None for delta, reason in deltas[index][1:-1])
    assert texts(CHAT, chunks) == {0: "hello0", 1: "hello1"}


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_usage_only_when_asked_for(live: Live, path: str) -> None:
    fields = {"n": 3} if path == CHAT else {"n": 3, "prompt": ["hi", "you"]}
    chunks = stream(live, path, stream_options={"include_usage": True}, **fields)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    num_prompt = len("user: hi\nassistant:") if path == CHAT else 2 + 3
    num_choices = 3 if path == CHAT else 6
    usage = {
        "prompt_tokens": num_prompt,
        "completion_tokens": 6 * num_choices,
        "total_tokens": num_prompt + 6 * num_choices,
        "prompt_tokens_details": {"cached_tokens": 1 if path == CHAT else 2},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert chunks[-1]["usage"] == usage
    check_chunks(path, chunks)
    assert live.http.post(path, json=body(path, **fields)).json()["usage"] == usage
    assert all("usage" not in chunk for chunk in stream(live, path, stream_options={"include_usage": False}, **fields))


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_stream_and_whole_answer_agree(live: Live, client: PlainClient, path: str) -> None:
    client.reply = "A 世界 b"
    whole = live.http.post(path, json=body(path, n=2)).json()
    chunks = stream(live, path, n=2)
    check_chunks(path, chunks)
    said = {choice["index"]: choice["text"] if path == TEXT else choice["message"]["content"] for choice in whole["choices"]}
    assert texts(path, chunks) == said == {0: "A 世界 b0", 1: "A 世界 b1"}
    if path == CHAT:
        assert not ChatCompletion.model_validate(whole, strict=True).model_extra
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": "A 世界 b0", "refusal": None}
    else:
        Completion.model_validate(whole, strict=True)


@pytest.mark.parametrize("top", [None, 0, 5])
def test_chat_logprobs(live: Live, client: PlainClient, top: int | None) -> None:
    client.reply = "x世"
    whole = live.http.post(CHAT, json=body(CHAT, logprobs=True, top_logprobs=top)).json()
    content = whole["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "x世"
    assert [entry["logprob"] for entry in content] == [-0.5] * 4
    assert all(len(entry["top_logprobs"]) == (top or 0) for entry in content)
    assert content[0]["token"] == "x"
    ChatCompletion.model_validate(whole, strict=True)
    chunks = stream(live, CHAT, logprobs=True, top_logprobs=top)
    check_chunks(CHAT, chunks)
    assert [entry for chunk in chunks for choice in chunk["choices"] for entry in (choice["logprobs"] or {"content": []})["content"]] == content
    assert live.http.post(CHAT, json=body(CHAT)).json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("top", [0, 5])
def test_completion_logprobs(live: Live, client: PlainClient, top: int) -> None:
    client.reply = "x世y"
    logprobs = live.http.post(TEXT, json=body(TEXT, logprobs=top)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["x", "bytes:\\xe4", "bytes:\\xb8", "bytes:\\x96", "y"]
    assert logprobs["token_logprobs"] == [-0.5] * 5
    assert logprobs["text_offset"] == [0, 1, 1, 1, 2]
    assert all(len(entry) == max(top, 1) for entry in logprobs["top_logprobs"])
    assert all(logprobs["top_logprobs"][i][token] == -0.5 for i, token in enumerate(logprobs["tokens"]))
    chunks = stream(live, TEXT, logprobs=top)
    pieces = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    assert {name: [item for piece in pieces for item in piece[name]] for name in logprobs} == logprobs
    assert live.http.post(TEXT, json=body(TEXT)).json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("value", [-math.inf, math.nan, -1e30])
def test_infinite_logprobs_are_numbers(live: Live, client: PlainClient, value: float) -> None:
    client.logprob = value
    answer = live.http.post(TEXT, json=body(TEXT, logprobs=2)).json()["choices"][0]["logprobs"]
    assert answer["token_logprobs"] == [-9999.0] * 5
    answer = live.http.post(CHAT, json=body(CHAT, logprobs=True, top_logprobs=1)).json()["choices"][0]["logprobs"]
    assert answer["content"][0]["logprob"] == answer["content"][0]["top_logprobs"][0]["logprob"] == -9999.0


FAULTS = [
    (InvalidRequest("max_tokens is too large", field="max_tokens", code="context_length_exceeded"), 400, "context_length_exceeded"),
    (Overloaded("the queue is full"), 503, "server_overloaded"),
    (EngineDead("the engine is gone"), 503, "engine_dead"),
    (RequestFailed("the sampler raised"), 500, "request_failed"),
    (ZeroDivisionError("secret detail"), 500, "internal_error"),
]


@pytest.mark.parametrize(("error", "status", "code"), FAULTS)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_failure_before_the_first_token_is_a_plain_error(
    live: Live, client: PlainClient, path: str, streaming: bool, error: Exception, status: int, code: str
) -> None:
    client.error, client.fail_at = error, 0
    response = live.http.post(path, json=body(path, stream=streaming))
    assert response.status_code == status
    found = check_error(response)
    assert found["code"] == code
    assert "secret" not in found["message"]
    assert ("retry-after" in response.headers) == (status == 503)
    if status == 400:
        assert found["param"] == "max_tokens"
    client.fail_at = None
    assert live.http.post(path, json=body(path)).status_code == 200


def test_the_engine_s_field_gets_the_name_that_the_request_used(live: Live, client: PlainClient) -> None:
    client.error, client.fail_at = FAULTS[0][0], 0
    assert check_error(live.http.post(CHAT, json=body(CHAT, max_completion_tokens=5)))["param"] == "max_completion_tokens"


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("more", [{}, {"n": 3}, {"prompt": ["a", "b", "c"]}])
def test_a_failure_within_a_stream_is_its_last_event(live: Live, client: PlainClient, path: str, at: int, more: dict[str, Any]) -> None:
    if path == CHAT and "prompt" in more:
        more = {}
    client.error, client.fail_at, client.step_seconds = RequestFailed("the sampler raised"), at, 0.005
    response = live.http.post(path, json=body(path, stream=True, stream_options={"include_usage": True}, **more))
    assert response.status_code == 200
    found = events(response.text)
    assert "[DONE]" not in found
    assert json.loads(found[-1]) == {"error": {"message": "the sampler raised", "type": "server_error", "param": None, "code": "request_failed"}}
    assert all("choices" in json.loads(event) for event in found[:-1])
    assert len(found) >= at
    assert not client.alive
    response = live.http.post(path, json=body(path, **more))
    assert response.status_code == 500
    assert check_error(response)["code"] == "request_failed"


@pytest.mark.parametrize("reason", ["abort", "error"])
@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_request_that_was_cut_is_an_error_and_no_answer(live: Live, client: PlainClient, path: str, reason: FinishReason) -> None:
    client.reason = reason
    response = live.http.post(path, json=body(path))
    assert response.status_code == 500
    assert check_error(response)["code"] == "request_failed"
    found = [json.loads(event) for event in events(live.http.post(path, json=body(path, stream=True)).text)]
    assert found[-1]["error"]["code"] == "request_failed"
    assert all(choice["finish_reason"] is None for chunk in found[:-1] for choice in chunk["choices"])
    assert texts(path, found[:-1]) == {0: "hello"}


def test_comments_keep_a_silent_stream_open() -> None:
    client = PlainClient(step_seconds=0.2, reply="abc")
    with Live(client, keep_alive_seconds=0.05) as live:
        response = live.http.post(TEXT, json=body(TEXT, stream=True))
        assert ": keep-alive\n\n" in response.text
        assert events(response.text)[-1] == "[DONE]"
        assert live.http.post(TEXT, json=body(TEXT)).json()["choices"][0]["text"] == "abc"


def test_request_ids_are_echoed_and_stay_outside(live: Live, client: PlainClient) -> None:
    for _ in range(2):
        response = live.http.post(TEXT, json=body(TEXT), headers={"x-request-id": "my.id-1"})
        assert response.headers["x-request-id"] == "my.id-1"
    assert live.http.post(TEXT, json=body(TEXT, request_id="body-id")).headers["x-request-id"] == "body-id"
    ids = [request_id for request_id, *_ in client.seen]
    assert len(set(ids)) == 3
    assert not {"my.id-1", "body-id"} & set(ids)
    for wrong in ("with space", "x" * 65, "a\tb", "ü".encode().decode("latin-1")):
        echoed = live.http.get("/health", headers={"x-request-id": wrong.encode("latin-1")}).headers["x-request-id"]  # type: ignore[dict-item]
        assert echoed.startswith("req-")


class Endless:
    """A client's iterator that is no generator: nothing closes it but a call."""

    def __init__(self) -> None:
        self.closed = False

    def __aiter__(self) -> Endless:
        return self

    async def __anext__(self) -> RequestOutput:
        await asyncio.sleep(0)
        return RequestOutput(request_id="r", prompt=None, num_prompt_tokens=1, num_cached_tokens=0, outputs=(), finished=False)

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize("count", [1, 3])
def test_every_iterator_is_closed_when_reading_stops(count: int) -> None:
    streams = [Endless() for _ in range(count)]

    async def read_one() -> None:
        async with aclosing(_merged(streams)) as merged:
            async for _ in merged:
                break

    asyncio.run(read_one())
    assert all(stream.closed for stream in streams)

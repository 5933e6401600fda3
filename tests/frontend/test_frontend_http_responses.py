"""`/v1/responses` on the wire: its events and their order, what the official client's models say of them, failures, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import openai
import pytest
from http_live import MODEL, Live, PlainClient, check_error, eventually
from openai.types.responses import Response, ResponseOutputMessage, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from corekit.api import EngineDead, Overloaded, RequestFailed, RequestOutput

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def unknown_fields(value: Any, at: str = "") -> set[str]:
    """What the official models do not know, wherever it is."""
    found = {f"{at}{name}" for name in getattr(value, "model_extra", None) or {}}
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            found |= unknown_fields(getattr(value, name), f"{at}{name}.")
    elif isinstance(value, list):
        found |= set().union(*(unknown_fields(item, at) for item in value), set())
    return found


def checked(body: dict[str, Any]) -> dict[str, Any]:
    parsed = Response.model_validate(body, strict=True)
    assert [type(item) for item in parsed.output] == [ResponseOutputMessage]
    assert unknown_fields(parsed) == {"store"}, "which OpenAI answers, too, and its models leave out"
    return body


def ask(live: Live, **fields: Any) -> dict[str, Any]:
    answer = live.http.post(PATH, json={"model": MODEL, "input": "hi", **fields})
    assert answer.status_code == 200, answer.text
    return checked(answer.json())


def stream(live: Live, **fields: Any) -> list[dict[str, Any]]:
    """Events in order, each checked against the official models."""
    answer = live.http.post(PATH, json={"model": MODEL, "input": "hi", "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.split("\n\n")
    assert blocks.pop() == ""
    found = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        assert unknown_fields(EVENT.validate_python(event, strict=True)) <= {"response.store"}
        found.append(event)
    return found


def test_a_whole_answer(live: Live, client: PlainClient) -> None:
    metadata = {f"key{number}": "v" * 512 for number in range(15)} | {"k" * 64: ""}
    body = ask(
        live, metadata=metadata, user="u", instructions="be short", temperature=0.5, prompt_cache_key="p", text={"verbosity": "low"}, max_output_tokens=9
    )
    assert client.seen[-1][1].messages == ({"role": "system", "content": "be short"}, {"role": "user", "content": "hi"})
    assert client.seen[-1][2].max_tokens == 9
    (item,) = body["output"]
    assert item["content"] == [{"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert (body["status"], body["error"], body["incomplete_details"], body["store"]) == ("completed", None, None, False)
    assert body["completed_at"] >= body["created_at"] > 0
    assert (body["id"][:5], item["id"][:4]) == ("resp_", "msg_")
    assert (body["metadata"], body["user"], body["instructions"], body["temperature"]) == (metadata, "u", "be short", 0.5)
    assert (body["prompt_cache_key"], body["text"]["verbosity"], body["max_output_tokens"], body["model"]) == ("p", "low", 9, MODEL)
    num_prompt = len("system: be short\nuser: hi\nassistant:")
    assert body["usage"] == {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_prompt + 5,
    }


def test_too_few_tokens_make_it_incomplete(live: Live) -> None:
    body = ask(live, max_output_tokens=3)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (body["output"][0]["status"], body["output"][0]["content"][0]["text"]) == ("incomplete", "hel")
    assert body["completed_at"] is None
    assert stream(live, max_output_tokens=3)[-1]["type"] == "response.incomplete"


def test_a_last_token_without_text_makes_it_incomplete_too(live: Live, client: PlainClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control token, or a part of a character, may be the last."""
    heard = client.generate

    async def muted(*prompt: Any, **named: Any) -> AsyncGenerator[RequestOutput, None]:
        async with aclosing(heard(*prompt, **named)) as news:
            async for output in news:
                yield replace(output, outputs=tuple(replace(sample, text="" if sample.finish_reason else sample.text) for sample in output.outputs))

    monkeypatch.setattr(client, "generate", muted)
    whole, events = ask(live, max_output_tokens=3), stream(live, max_output_tokens=3)
    assert [event["type"] for event in events].count("response.output_text.delta") == 2, "there is no empty one"
    assert events[-1]["type"] == "response.incomplete"
    for answer in (whole, events[-1]["response"]):
        assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert (answer["output"][0]["status"], answer["output"][0]["content"][0]["text"]) == ("incomplete", "he")


def test_order_of_events(live: Live) -> None:
    events = stream(live)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 5,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    begun, ended = events[0]["response"], events[-1]["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert begun["id"] == ended["id"]
    assert {event["item_id"] for event in events if "item_id" in event} == {events[2]["item"]["id"]}
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == events[-4]["text"] == "hello"
    assert events[-3]["part"] == events[-2]["item"]["content"][0] == ended["output"][0]["content"][0]


@pytest.mark.parametrize("fields", [{}, LOGPROBS, {"include": LOGPROBS["include"]}, {**LOGPROBS, "max_output_tokens": 4}])
def test_stream_and_whole_answer_agree(live: Live, client: PlainClient, fields: dict[str, Any]) -> None:
    client.reply = "A 世界 b"
    whole, streamed = ask(live, **fields), stream(live, **fields)[-1]["response"]
    for answer in (whole, streamed):
        for name in ("id", "created_at", "completed_at"):
            del answer[name]
        del answer["output"][0]["id"]
    assert streamed == whole


def test_logprobs(live: Live, client: PlainClient) -> None:
    client.reply = "x世"
    events = stream(live, **LOGPROBS)
    entries = events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "x世"
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * 4
    assert entries[0] == {
        "token": "x",
        "logprob": -0.5,
        "bytes": [120],
        "top_logprobs": [{"token": "x", "logprob": -0.5, "bytes": [120]}, {"token": "A", "logprob": -1.5, "bytes": [65]}],
    }
    deltas = [entry for event in events if event["type"] == "response.output_text.delta" for entry in event["logprobs"]]
    assert deltas == events[-4]["logprobs"]
    assert [(entry["token"], entry["logprob"]) for entry in deltas] == [(entry["token"], entry["logprob"]) for entry in entries]
    assert all(entry["top_logprobs"] == [] for entry in ask(live, include=LOGPROBS["include"])["output"][0]["content"][0]["logprobs"])


def test_pieces_may_be_padded(live: Live, client: PlainClient) -> None:
    client.reply = "one two"
    answer = live.http.post(PATH, json={"model": MODEL, "input": "hi", "stream": True, "stream_options": {"include_obfuscation": True}})
    pieces = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith('data: {"type":"response.output_text.delta"')]
    assert {len(piece) % 64 for piece in pieces} == {0}
    assert "".join(json.loads(piece)["delta"] for piece in pieces) == "one two"
    assert all("obfuscation" not in event for event in stream(live, stream_options={"include_obfuscation": False}))


def test_a_failure_in_mid_stream_is_the_last_event(live: Live, client: PlainClient) -> None:
    client.error, client.fail_at = EngineDead("the worker is gone"), 3
    *before, error, failed = stream(live)
    assert [event["type"] for event in before[-3:]] == ["response.output_text.delta"] * 3
    assert (error["type"], error["code"], error["message"], error["param"]) == ("error", "engine_dead", "the worker is gone", None)
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": "the worker is gone"}
    (item,) = failed["response"]["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "hel")
    assert failed["response"]["usage"] is None


@pytest.mark.parametrize("streamed", [False, True])
def test_a_failure_before_the_first_news_is_a_plain_error(live: Live, client: PlainClient, streamed: bool) -> None:
    client.error, client.fail_at = Overloaded("the queue is full"), 0
    answer = live.http.post(PATH, json={"model": MODEL, "input": "hi", "stream": streamed})
    assert answer.status_code == 503
    assert check_error(answer)["code"] == "server_overloaded"


def test_an_answer_cut_by_the_engine_is_no_answer(live: Live, client: PlainClient) -> None:
    client.reason = "abort"
    assert live.http.post(PATH, json={"model": MODEL, "input": "hi"}).status_code == 500
    assert stream(live)[-1]["type"] == "response.failed"


def test_nothing_is_kept(live: Live) -> None:
    made = ask(live)["id"]
    for method, path in (("GET", made), ("DELETE", made), ("GET", f"{made}/input_items"), ("POST", f"{made}/cancel")):
        answer = live.http.request(method, f"{PATH}/{path}")
        assert answer.status_code == 404
        error = check_error(answer)
        assert error["code"] == "response_not_found"
        assert made[:20] in error["message"]


def test_the_official_client(live: Live, client: PlainClient) -> None:
    client.reply = "héllo"
    with openai.OpenAI(base_url=live.url + "/v1", api_key="key", max_retries=0) as official:
        answer = official.responses.create(model=MODEL, input="hi", extra_body={"top_k": 5, "seed": 1})
        assert (answer.output_text, answer.status) == ("héllo", "completed")
        assert client.seen[-1][2].top_k == 5
        again: Any = [{"role": "user", "content": "hi"}, *answer.output, {"role": "user", "content": [{"type": "input_text", "text": "and?"}]}]
        assert official.responses.create(model=MODEL, input=again).output_text == "héllo"
        assert client.seen[-1][1].messages == tuple(
            {"role": role, "content": said} for role, said in (("user", "hi"), ("assistant", "héllo"), ("user", "and?"))
        )
        deltas = [event.delta for event in official.responses.create(model=MODEL, input="hi", stream=True) if event.type == "response.output_text.delta"]
        assert "".join(deltas) == "héllo"
        with official.responses.stream(model=MODEL, input="hi") as gathered:
            assert gathered.get_final_response().output_text == "héllo"
        with pytest.raises(openai.BadRequestError) as refused:
            official.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
        assert refused.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError, match="keeps none"):
            official.responses.retrieve("resp_1")
        client.error, client.fail_at = RequestFailed("the sampler raised"), 2
        types = [event.type for event in official.responses.create(model=MODEL, input="hi", stream=True)]
        assert types[-2:] == ["error", "response.failed"]


def test_the_official_client_in_asyncio(live: Live, client: PlainClient) -> None:
    async def talk() -> None:
        async with openai.AsyncOpenAI(base_url=live.url + "/v1", api_key="key", max_retries=0) as official:
            assert (await official.responses.create(model=MODEL, input="hi")).output_text == "hello"
            async with official.responses.stream(model=MODEL, input="hi") as gathered:
                assert (await gathered.get_final_response()).output_text == "hello"
            client.endless = True
            left = await official.responses.create(model=MODEL, input="hi", stream=True)
            async for _ in left:
                break
            await left.close()

    asyncio.run(talk())
    assert eventually(lambda: not client.alive)
    assert client.num_aborted == 1

"""The official client, sync and async, streamed and not, on every endpoint: each byte that came is held against the client's own types."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from conformance_rig import MODEL, PiecesTokenizer, Server, running, served
from wire_models import AsyncRecording, Recording, faults, stream_faults, value_faults

TEXT = "Mars? 世é beta gamma!"
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES: list[dict[str, Any]] = [{"role": "developer", "content": "be short"}, {"role": "user", "content": [{"type": "text", "text": "héllo"}]}]
DEMO: dict[str, Any] = {"block_allocator": {"num_blocks": 128}, "engine": {"log_stats": False}}
USAGE = {"stream_options": {"include_usage": True}}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": (COMPLETIONS, {"prompt": "Q"}),
    "completion of lists": (COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "logprobs": 2, "max_tokens": 4}),
    "completion of ids": (COMPLETIONS, {"prompt": [[81, 82], [83]], "stop": ["a"], "seed": 3}),
    "echo": (COMPLETIONS, {"prompt": "Qé", "echo": True, "logprobs": 1, "max_tokens": 3}),
    "echo alone": (COMPLETIONS, {"prompt": "Qé", "echo": True, "logprobs": 1, "max_tokens": 0}),
    "chat": (CHAT, {"messages": MESSAGES}),
    "chat with all": (CHAT, {"messages": MESSAGES, "n": 3, "logprobs": True, "top_logprobs": 3, "max_completion_tokens": 9, "stop": "beta", "user": "u"}),
    "chat with extras": (CHAT, {"messages": MESSAGES, "extra_body": {"top_k": 4, "min_tokens": 2, "return_token_ids": True, "prompt_logprobs": 1}}),
    "response": (RESPONSES, {"input": "Q"}),
    "response of items": (RESPONSES, {"input": MESSAGES, "instructions": "be brief", "max_output_tokens": 4, "metadata": {"a": "b"}}),
    "response with logprobs": (RESPONSES, {"input": "Q", "top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(texts=(TEXT,), tokenizer=PiecesTokenizer(), vocab_size=PiecesTokenizer().vocab_size) as server:
        yield server
        server.check_end()


def arguments(path: str, fields: dict[str, Any], stream: bool) -> dict[str, Any]:
    more = {"temperature": 0, "model": MODEL, **fields}
    if stream:
        more |= {"stream": True} | (USAGE if path != RESPONSES else {})
    return more


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_every_byte_is_what_the_client_expects(server: Server, name: str, stream: bool) -> None:
    path, fields = CALLS[name]
    recording = Recording()
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, http_client=httpx.Client(transport=recording)) as client:
        create = {COMPLETIONS: client.completions, CHAT: client.chat.completions, RESPONSES: client.responses}[path].create
        answer: Any = create(**arguments(path, fields, stream))  # type: ignore[operator]
        if stream:
            assert len(list(answer)) > 1
    (exchange,) = recording.exchanges
    assert (exchange.status, faults(exchange)) == (200, [])


def test_models(server: Server) -> None:
    recording = Recording()
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, http_client=httpx.Client(transport=recording)) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
    assert [faults(exchange) for exchange in recording.exchanges] == [[], []]


def test_the_async_client_with_all_at_once(server: Server) -> None:
    recording = AsyncRecording()

    async def ask(client: openai.AsyncOpenAI, path: str, fields: dict[str, Any], stream: bool) -> None:
        resource: Any = {COMPLETIONS: client.completions, CHAT: client.chat.completions, RESPONSES: client.responses}[path]
        answer = await resource.create(**arguments(path, fields, stream))
        if stream:
            assert len([event async for event in answer]) > 1

    async def main() -> None:
        http = httpx.AsyncClient(transport=recording)
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, http_client=http) as client:
            await asyncio.gather(*(ask(client, path, fields, stream) for path, fields in CALLS.values() for stream in (False, True)))
            assert [model.id async for model in client.models.list()] == [MODEL]

    asyncio.run(main())
    assert len(recording.exchanges) == 2 * len(CALLS) + 1
    assert [fault for exchange in recording.exchanges for fault in faults(exchange)] == []


def test_the_yardstick_finds_what_is_wrong(server: Server) -> None:
    """Each planted fault is named: a yardstick that finds nothing proves nothing."""
    good = server.http.post(CHAT, json={"model": MODEL, "messages": MESSAGES, "temperature": 0, "logprobs": True, "top_logprobs": 1}).json()
    kind = openai.types.chat.ChatCompletion
    assert value_faults(kind, good) == []
    entry = good["choices"][0]["logprobs"]["content"][0]
    planted: list[tuple[dict[str, Any], str, Any]] = [
        (good, "id", None),
        (good, "object", "chat"),
        (good, "created", "1"),
        (good["choices"][0], "finish_reason", "abort"),
        (good["choices"][0]["message"], "role", "bot"),
        (good["choices"][0], "extra", 1),
        (good["usage"], "extra", 1),
        (entry, "logprob", None),
        (entry["top_logprobs"][0], "token", 1),
    ]
    for holder, field, wrong in planted:
        before = holder.get(field)
        holder[field] = wrong
        assert value_faults(kind, good), (field, wrong)
        holder[field] = before
        if before is None:
            del holder[field]
    assert value_faults(kind, good) == []
    stream = server.http.post(COMPLETIONS, json={"model": MODEL, "prompt": "Q", "temperature": 0, "stream": True}).content
    assert stream_faults(COMPLETIONS, stream) == []
    for spoilt in (stream + b"data: {}\n\n", stream[:-1], stream.replace(b"data: {", b"data {", 1), stream.replace(b'"text"', b'"txt"', 1)):
        assert stream_faults(COMPLETIONS, spoilt), spoilt


@pytest.mark.slow
def test_the_demo_model(demo_source: object) -> None:
    """The same calls on real weights."""
    recording = Recording()
    with running(DEMO) as demo, openai.OpenAI(base_url=demo.url + "/v1", api_key="none", http_client=httpx.Client(transport=recording, timeout=120)) as client:
        for path, fields in CALLS.values():
            for stream in (False, True):
                resource: Any = {COMPLETIONS: client.completions, CHAT: client.chat.completions, RESPONSES: client.responses}[path]
                limit = {"max_output_tokens": 16} if path == RESPONSES else {"max_tokens": 16}
                answer = resource.create(**{**limit, **arguments(path, fields, stream), "model": client.models.list().data[0].id})
                if stream:
                    list(answer)
    assert [(exchange.path, fault) for exchange in recording.exchanges for fault in faults(exchange)] == []
    assert {exchange.status for exchange in recording.exchanges} == {200}

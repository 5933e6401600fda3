"""The official client, unmodified, against a live server: sync and async, streaming and not, and its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from http_live import MODEL, Live, PlainClient, eventually

from corekit.api import RequestFailed

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]


@pytest.fixture
def engine() -> PlainClient:
    return PlainClient(reply="héllo", step_seconds=0.001)


@pytest.fixture
def live(engine: PlainClient) -> Iterator[Live]:
    with Live(engine, api_keys=("key",)) as server:
        yield server


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.url + "/v1", api_key="key", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve("other/alias").id == "other/alias"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=20, logprobs=True, top_logprobs=2, extra_body={"top_k": 5})
    assert answer.choices[0].message.content == "héllo"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("héllo".encode())
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert len(answer.choices[0].logprobs.content) == 6
    again = [*MESSAGES, answer.choices[0].message, {"role": "user", "content": "and?"}]
    assert client.chat.completions.create(model=MODEL, messages=again).choices[0].message.content == "héllo"  # type: ignore[arg-type]


def test_chat_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "héllo"
    assert chunks[-1].usage is not None
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["a", "b"], n=2, logprobs=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(model=MODEL, prompt=[1, 2, 3], stream=True))
    assert text == "héllo"


def test_raw_response(client: openai.OpenAI) -> None:
    response = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES, extra_headers={"X-Request-Id": "mine"})
    assert response.headers["x-request-id"] == "mine"
    assert response.request_id == "mine"
    assert response.parse().choices[0].message.content == "héllo"


def test_errors(live: Live, client: openai.OpenAI, engine: PlainClient) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, presence_penalty=2.5)
    assert refused.value.param == "presence_penalty"
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-none", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with openai.OpenAI(base_url=live.url + "/v1", api_key="wrong", max_retries=0) as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    engine.error, engine.fail_at = RequestFailed("the sampler raised"), 3
    before = len(engine.seen)
    with pytest.raises(openai.InternalServerError):
        client.with_options(max_retries=2).chat.completions.create(model=MODEL, messages=MESSAGES)
    assert len(engine.seen) == before + 1, "a request whose fault is its own was sent again"
    with pytest.raises(openai.APIError, match="the sampler raised"):
        list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))


def test_async_client(live: Live, engine: PlainClient) -> None:
    async def talk() -> None:
        async with openai.AsyncOpenAI(base_url=live.url + "/v1", api_key="key", max_retries=0) as client:

            async def streamed() -> str:
                stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            async def whole() -> str | None:
                return (await client.chat.completions.create(model=MODEL, messages=MESSAGES)).choices[0].message.content

            assert await asyncio.gather(*(streamed() if number % 2 else whole() for number in range(16))) == ["héllo"] * 16
            engine.reply = "x" * 300
            stream = await client.completions.create(model=MODEL, prompt="x", stream=True, max_tokens=300)
            async for _ in stream:
                break
            await stream.close()

    asyncio.run(talk())
    assert eventually(lambda: not engine.alive)
    assert engine.num_aborted == 1

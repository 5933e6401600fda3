"""Holds raw bodies against the official client's own types, strictly: nothing missing, no wrong literal, nothing unknown but a list.

Knows nothing of how bodies came about.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

EXTRAS = frozenset(
    {
        "choices.prompt_logprobs",
        "choices.prompt_token_ids",
        "choices.stop_reason",
        "choices.token_ids",
        "max_model_len",
        "parent",
        "permission",
        "prompt_logprobs",
        "prompt_token_ids",
        "root",
        "store",
    }
)
"""Fields that vLLM's clients read and OpenAI's types do not know; `store` OpenAI's own responses have."""
ERROR_FIELDS = {"message", "type", "param", "code"}


@dataclass
class Exchange:
    """One request as it went over the wire."""

    method: str
    path: str
    status: int
    headers: httpx.Headers
    body: bytearray = field(default_factory=bytearray)


class _Tee(httpx.SyncByteStream):
    def __init__(self, inner: httpx.SyncByteStream, into: bytearray) -> None:
        self._inner = inner
        self._into = into

    def __iter__(self) -> Iterator[bytes]:
        for part in self._inner:
            self._into += part
            yield part

    def close(self) -> None:
        self._inner.close()


class _AsyncTee(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, into: bytearray) -> None:
        self._inner = inner
        self._into = into

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            self._into += part
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


class Recording(httpx.HTTPTransport):
    """Keeps what comes over the wire, byte for byte."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[Exchange] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        self.exchanges.append(Exchange(request.method, request.url.path, response.status_code, response.headers))
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Tee(response.stream, self.exchanges[-1].body)
        return response


class AsyncRecording(httpx.AsyncHTTPTransport):
    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[Exchange] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        self.exchanges.append(Exchange(request.method, request.url.path, response.status_code, response.headers))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _AsyncTee(response.stream, self.exchanges[-1].body)
        return response


def faults(exchange: Exchange) -> list[str]:
    """What is wrong with an answer; nothing, where the official types take it as it is."""
    if exchange.status != 200:
        return error_faults(exchange.status, bytes(exchange.body), exchange.headers)
    if exchange.headers["content-type"].startswith("text/event-stream"):
        return stream_faults(exchange.path, bytes(exchange.body))
    whole: dict[str, Any] = {"/v1/completions": Completion, "/v1/chat/completions": ChatCompletion, "/v1/responses": Response}
    if exchange.path == "/v1/models":
        page = json.loads(exchange.body)
        found = [] if set(page) == {"object", "data"} and page["object"] == "list" else [f"a page of models: {sorted(page)}"]
        return found + [fault for card in page["data"] for fault in value_faults(Model, card)]
    kind = Model if exchange.path.startswith("/v1/models/") else whole.get(exchange.path)
    if kind is None:
        return [f"no type for {exchange.path}"]
    value = json.loads(exchange.body, parse_constant=_refuse_constant)
    return value_faults(kind, _as_typed(exchange.path, value) if _ended(exchange.path, value) else value)


def _ended(path: str, value: Any) -> bool:
    """Whether every choice of a whole completion has its reason."""
    return path == "/v1/completions" and all(choice["finish_reason"] for choice in value["choices"])


def stream_faults(path: str, body: bytes) -> list[str]:
    found: list[str] = []
    kinds: dict[str, Any] = {"/v1/completions": Completion, "/v1/chat/completions": ChatCompletionChunk, "/v1/responses": ResponseStreamEvent}
    blocks = body.decode().split("\n\n")
    if blocks.pop() != "":
        found.append("the stream does not end with an empty line")
    for number, block in enumerate(blocks):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        if len(data) != bool(lines) or len(data) + len(names) != len(lines):
            found.append(f"event {number} is not one line of data: {block[:80]!r}")
        elif data == ["[DONE]"]:
            found += ["more comes after [DONE]"] if number != len(blocks) - 1 else []
        elif data:
            value = json.loads(data[0], parse_constant=_refuse_constant)
            if names and path == "/v1/responses" and value.get("type") != names[0]:
                found.append(f"event {number} is called {names[0]!r} and says {value.get('type')!r}")
            found += _error_object_faults(value) if set(value) == {"error"} else value_faults(kinds[path], _as_typed(path, value))
    return found


def _as_typed(path: str, value: Any) -> Any:
    """OpenAI's own completions have nulls which its types do not know: as finish reason until the last, and as logprob of an echoed first token."""
    if path == "/v1/completions":
        for choice in value.get("choices", ()):
            if choice.get("finish_reason", "") is None:
                choice["finish_reason"] = "stop"
            logprobs = choice.get("logprobs") or {}
            if logprobs.get("token_logprobs", [0])[:1] == [None]:
                assert logprobs["top_logprobs"][0] is None
                logprobs["token_logprobs"][0], logprobs["top_logprobs"][0] = 0.0, {}
    return value


def error_faults(status: int, body: bytes, headers: httpx.Headers) -> list[str]:
    """Of an answer that is an error: OpenAI's form, as JSON, with a request id."""
    if headers.get("content-type") != "application/json":
        return [f"{status} with content-type {headers.get('content-type')}"]
    found = [] if headers.get("x-request-id") else [f"{status} without x-request-id"]
    return found + _error_object_faults(json.loads(body, parse_constant=_refuse_constant))


def _error_object_faults(value: Any) -> list[str]:
    if not isinstance(value, dict) or set(value) != {"error"} or set(value["error"]) != ERROR_FIELDS:
        return [f"an error of another form: {value!r}"[:200]]
    error = value["error"]
    found = [] if isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str) else [f"no message or type: {error}"]
    found += [f"{name} must be text or null: {error[name]!r}" for name in ("param", "code") if not isinstance(error[name], str | None)]
    return found


def value_faults(kind: Any, value: Any) -> list[str]:
    try:
        made = _adapter(kind).validate_json(json.dumps(value), strict=True)
    except ValueError as error:
        return [str(error)]
    unknown = {name for name in unknown_fields(made) if name.removeprefix("response.") not in EXTRAS}
    return [f"unknown field {name} in a {type(made).__name__}" for name in sorted(unknown)]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def unknown_fields(made: Any, at: str = "") -> Iterator[str]:
    """Paths of what the types have no field for, without the numbers of lists."""
    if isinstance(made, BaseModel):
        prefix = f"{at}." if at else ""
        yield from (prefix + name for name in made.model_extra or {})
        for name in type(made).model_fields:
            yield from unknown_fields(getattr(made, name), prefix + name)
    elif isinstance(made, list):
        for item in made:
            yield from unknown_fields(item, at)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

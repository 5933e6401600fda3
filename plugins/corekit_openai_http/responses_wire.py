"""The shapes of `/v1/responses`, as values that encode to JSON. Knows nothing of how they are filled."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class InputDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0
    """Of caching that is paid for; the prefix cache here costs nothing."""


class OutputDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class TopText(msgspec.Struct, kw_only=True):
    token: str
    logprob: float


class TextLogprob(TopText, kw_only=True):
    """In events about text; parts have the bytes, too."""

    top_logprobs: list[TopText]


class TextPart(msgspec.Struct, kw_only=True):
    type: str = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: msgspec.Raw = msgspec.Raw(b"[]")


class MessageItem(msgspec.Struct, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    status: str
    content: list[TextPart] = []


class ResponseError(msgspec.Struct, kw_only=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, kw_only=True):
    reason: str


class Reasoning(msgspec.Struct, kw_only=True, frozen=True):
    effort: None = None
    summary: None = None


class Response(msgspec.Struct, kw_only=True):
    """The answer, at the end and in the events about all of it. What this server never does is said as OpenAI says it."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[Any] = []
    parallel_tool_calls: bool
    previous_response_id: None = None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: Reasoning = Reasoning()
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: str
    tools: list[Any] = []
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None


class Event(msgspec.Struct, kw_only=True):
    type: str
    sequence_number: int


class ResponseEvent(Event, kw_only=True):
    response: Response


class ItemEvent(Event, kw_only=True):
    output_index: int = 0
    item: MessageItem


class PartEvent(Event, kw_only=True):
    item_id: str
    output_index: int = 0
    content_index: int = 0
    part: TextPart


class DeltaEvent(Event, kw_only=True):
    item_id: str
    output_index: int = 0
    content_index: int = 0
    delta: str
    logprobs: msgspec.Raw
    obfuscation: str | UnsetType = UNSET


class TextDoneEvent(Event, kw_only=True):
    item_id: str
    output_index: int = 0
    content_index: int = 0
    text: str
    logprobs: msgspec.Raw


class ErrorEvent(Event, kw_only=True):
    code: str | None
    message: str
    param: str | None

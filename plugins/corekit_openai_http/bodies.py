"""Bodies of the endpoints that answer with choices, as clients send them. Knows names and types; nothing of bounds or of what fields mean."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class Asked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of every endpoint that generates: how tokens are drawn, and what a request is called; None is absent."""

    model: str
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    banned_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    cache_salt: str | None = None
    cache_retention: float | None = None
    prompt_cache_retention: str | None = None
    stream: bool = False
    request_id: str | None = None
    priority: int | None = None


class Common(Asked, kw_only=True, forbid_unknown_fields=True):
    """Fields of both endpoints that answer with choices."""

    n: int | None = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    echo: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    stream_options: StreamOptions | None = None
    stream_interval: int | None = None


class CompletionBody(Common, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[Any]
    logprobs: int | None = None
    best_of: int | None = None
    add_special_tokens: bool = True


class ChatBody(Common, kw_only=True, forbid_unknown_fields=True):
    messages: list[Any]
    logprobs: bool = False
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: Effort | None = None
    documents: list[dict[str, str]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] = {}

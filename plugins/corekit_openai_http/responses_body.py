"""Body of `/v1/responses` to a job for the engine. Knows the fields' meaning; nothing of sockets or of how the answer looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from corekit.api import ModelFacts, Prompt, SamplingParams
from corekit.api.types import MAX_TOP_LOGPROBS

from .bodies import Asked
from .errors import ApiError, invalid
from .fields import convert, cut, drop_without_effect, unsupported
from .options import HttpOptions
from .requests import Job, biases, bounded, check_identity, check_logprobs, check_model, check_retention, check_size, sampling
from .responses_items import read_input
from .shown import Shown

LOGPROBS = "message.output_text.logprobs"
MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512
VERBOSITIES = ("low", "medium", "high")

HARMLESS = frozenset({"service_tier"})
"""Accepted without effect; the answer says what is served."""

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": (),
    "conversation": (),
    "enable_response_messages": (False,),
    "image": (),
    "mm_processor_kwargs": (),
    "moderation": (),
    "n": (1,),
    "previous_input_messages": (),
    "previous_response": (),
    "previous_response_id": (),
    "prompt": (),
    "prompt_cache_options": (),
    "store": (False,),
    "structured_outputs": (),
    "tools": ([],),
    "truncation": ("disabled",),
    "vllm_xargs": (),
}
"""Fields that clients know and this endpoint refuses, with the values that mean the same as leaving the field out."""


CALLED: Mapping[str, str] = {
    "logprobs": "include",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
}
"""A word of other endpoints -> what means the same here."""


class ResponsesStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesBody(Asked, kw_only=True, forbid_unknown_fields=True):
    """None is absent."""

    input: str | list[Any]
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    include: list[str] = msgspec.field(default_factory=list)
    text: TextOptions | None = None
    reasoning: dict[str, Any] = msgspec.field(default_factory=dict)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    stream_options: ResponsesStreamOptions | None = None
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesJob(Job):
    echo: Mapping[str, Any]
    """Fields of the answer that say what was asked for."""


def responses_job(fields: dict[str, Any], model: ModelFacts, options: HttpOptions) -> ResponsesJob:
    """Raises ApiError for the first field that is wrong."""
    for name in fields:
        if name in CALLED:
            raise invalid(f"{name} is called {CALLED[name]} in this endpoint", name, code="unknown_parameter")
    body = convert(drop_without_effect(fields, harmless=HARMLESS, refused=UNSUPPORTED), ResponsesBody)
    check_model(body.model, model, options)
    bounded("max_output_tokens", body.max_output_tokens, 1, 2**31 - 1)
    bounded("max_tool_calls", body.max_tool_calls, 1, 2**31 - 1)
    check_identity(body.request_id, body.priority)
    check_retention(body.prompt_cache_retention, body.cache_retention)
    _check_metadata(body.metadata)
    _check_what_is_text_only(body)
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream: true", "stream_options")
    conversation = read_input(body.input, body.instructions or "")
    logprobs = _logprobs(body, model)
    params = SamplingParams(**sampling(body), logit_bias=biases(body.logit_bias or {}), max_tokens=body.max_output_tokens, logprobs=logprobs)
    job = ResponsesJob(
        model=body.model,
        prompts=(Prompt(messages=tuple(conversation.messages), template=_template(body, continues=conversation.is_unfinished)),),
        params=params,
        stream=body.stream,
        include_usage=True,
        request_id=body.request_id,
        priority=body.priority or 0,
        names={
            "prompt": "input",
            "messages": "input",
            "max_tokens": "max_output_tokens",
            "logprobs": "top_logprobs" if body.top_logprobs is not None else "include",
            "template": "chat_template_kwargs",
        },
        shown=Shown(logprobs=logprobs, obfuscated=body.stream_options is not None and bool(body.stream_options.include_obfuscation)),
        echo=_echo(body, params),
    )
    check_size(job, model, options)
    return job


def _check_metadata(given: Mapping[str, str]) -> None:
    if len(given) > MAX_METADATA:
        raise invalid(f"metadata must have at most {MAX_METADATA} pairs, got {len(given)}", "metadata")
    for key, value in given.items():
        if not 1 <= len(key) <= MAX_METADATA_KEY_CHARS:
            raise invalid(f"metadata must have keys of 1 to {MAX_METADATA_KEY_CHARS} characters, got one of {len(key)}", "metadata")
        if len(value) > MAX_METADATA_VALUE_CHARS:
            raise invalid(f"metadata must have values of at most {MAX_METADATA_VALUE_CHARS} characters, got {len(value)} in {key!r}", "metadata")


def _check_what_is_text_only(body: ResponsesBody) -> None:
    """Fields that ask for nothing but text, or for what this server does not have."""
    for name, value in body.reasoning.items():
        if value is not None:
            raise unsupported(f"reasoning.{cut(name)}")
    if body.tool_choice not in ("auto", "none"):
        raise invalid('tool_choice must be "auto" or "none": this server has no tools', "tool_choice", code="unsupported_parameter")
    for index, name in enumerate(body.include):
        if name != LOGPROBS:
            at = f"include[{index}]"
            raise invalid(f'{at} must be "{LOGPROBS}", got {cut(name)!r}: this server has nothing else to include', at, code="unsupported_value")
    text = body.text or TextOptions()
    if text.format is not None and text.format != {"type": "text"}:
        raise unsupported("text.format", ({"type": "text"},))
    if text.verbosity is not None and text.verbosity not in VERBOSITIES:
        raise invalid(f"text.verbosity must be one of {', '.join(VERBOSITIES)}, got {cut(text.verbosity)!r}", "text.verbosity", code="invalid_value")


def _logprobs(body: ResponsesBody, model: ModelFacts) -> int | None:
    bounded("top_logprobs", body.top_logprobs, 0, MAX_TOP_LOGPROBS)
    if LOGPROBS in body.include:
        check_logprobs(model, "include")
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise invalid(f'top_logprobs needs include: ["{LOGPROBS}"]', "top_logprobs")
    return None


def _template(body: ResponsesBody, *, continues: bool) -> Mapping[str, Any]:
    own = {"add_generation_prompt": not continues} | ({"continue_final_message": True} if continues else {})
    for name in ("add_generation_prompt", "continue_final_message"):
        if name in body.chat_template_kwargs:
            raise _not_here(name)
    return {**own, **body.chat_template_kwargs}


def _not_here(name: str) -> ApiError:
    message = f'{name} follows from input: a last message of the assistant with the status "incomplete" is continued, all else is answered'
    return invalid(message, f"chat_template_kwargs.{name}")


def _echo(body: ResponsesBody, params: SamplingParams) -> Mapping[str, Any]:
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata,
        "model": body.model,
        "parallel_tool_calls": body.parallel_tool_calls,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
        "safety_identifier": body.safety_identifier,
        "temperature": params.temperature,
        "text": {"format": {"type": "text"}, "verbosity": body.text.verbosity if body.text is not None else None},
        "tool_choice": body.tool_choice,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "user": body.user,
    }

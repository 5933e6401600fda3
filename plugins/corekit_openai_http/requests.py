"""Bodies of the two endpoints to jobs for the engine. Knows the fields' meaning; nothing of sockets or of how answers look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from corekit.api import ModelFacts, Prompt, SamplingParams
from corekit.api.types import MAX_TOP_LOGPROBS

from .errors import ApiError, invalid
from .fields import convert, cut, drop_without_effect, unsupported
from .ids import REQUEST_ID
from .messages import read_messages
from .options import HttpOptions

_ID = re.compile(r"-?(0|[1-9][0-9]{0,17})")

_SAMPLING = (
    "n",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "allowed_token_ids",
    "banned_token_ids",
    "bad_words",
    "seed",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "cache_salt",
    "cache_retention",
)

RETENTIONS: Mapping[str, float] = {"in_memory": 0.0, "24h": 24 * 3600.0}
"""OpenAI's words for how long a prefix stays cached, in seconds."""


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class Common(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of both endpoints; None is absent."""

    model: str
    n: int | None = None
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
    max_tokens: int | None = None
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
    stream_options: StreamOptions | None = None
    request_id: str | None = None
    priority: int | None = None


class CompletionBody(Common, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[Any]
    logprobs: int | None = None
    best_of: int | None = None


class ChatBody(Common, kw_only=True, forbid_unknown_fields=True):
    messages: list[Any]
    logprobs: bool = False
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One HTTP request as the engine sees it. Choice `prompt * n + sample` of the answer is that sample of that prompt."""

    model: str
    prompts: tuple[Prompt, ...]
    params: SamplingParams
    stream: bool
    include_usage: bool
    request_id: str | None
    """The client's own name for this request, echoed and never used inside."""
    priority: int
    names: dict[str, str]
    """The engine's name of a field -> the name that this request used."""
    tenant: str = ""
    """Whose it is; empty where nobody says."""


def completion_job(fields: dict[str, Any], model: ModelFacts, options: HttpOptions) -> Job:
    body = convert(drop_without_effect(fields), CompletionBody)
    _check_common(body, model, options)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of")
    prompts = _prompts(body.prompt, options.max_prompts, model.max_model_len)
    job = _job(body, prompts, max_tokens=16 if body.max_tokens is None else body.max_tokens, logprobs=body.logprobs, names={})
    check_size(job, model, options)
    return job


def chat_job(fields: dict[str, Any], model: ModelFacts, options: HttpOptions) -> Job:
    body = convert(drop_without_effect(fields), ChatBody)
    _check_common(body, model, options)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    bounded("top_logprobs", body.top_logprobs, 0, MAX_TOP_LOGPROBS)
    bounded("max_completion_tokens", body.max_completion_tokens, 1, 2**31 - 1)
    prompt = Prompt(messages=read_messages(body.messages), template=_template(body))
    names = {"logprobs": "top_logprobs" if body.top_logprobs is not None else "logprobs", "prompt": "messages", "template": "chat_template_kwargs"}
    max_tokens = body.max_tokens
    if body.max_completion_tokens is not None:
        max_tokens = body.max_completion_tokens
        names["max_tokens"] = "max_completion_tokens"
    job = _job(body, (prompt,), max_tokens=max_tokens, logprobs=(body.top_logprobs or 0) if body.logprobs else None, names=names)
    check_size(job, model, options)
    return job


def _job(body: Common, prompts: tuple[Prompt, ...], *, max_tokens: int | None, logprobs: int | None, names: dict[str, str]) -> Job:
    given = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if body.prompt_cache_retention is not None:
        given["cache_retention"] = RETENTIONS[body.prompt_cache_retention]
    return Job(
        model=body.model,
        prompts=prompts,
        params=SamplingParams(**given, logit_bias=biases(body.logit_bias or {}), max_tokens=max_tokens, logprobs=logprobs),
        stream=body.stream,
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        request_id=body.request_id,
        priority=body.priority or 0,
        names=names,
    )


def biases(given: dict[str, float]) -> dict[int, float]:
    """JSON writes token ids as text."""
    for key in given:
        if not _ID.fullmatch(key):
            raise invalid(f'logit_bias must have token ids as keys, such as {{"50256": -100}}, got {cut(key)!r}', "logit_bias")
    return {int(key): value for key, value in given.items()}


def _check_common(body: CompletionBody | ChatBody, model: ModelFacts, options: HttpOptions) -> None:
    check_model(body.model, model, options)
    bounded("n", body.n, 1, options.max_n)
    check_identity(body.request_id, body.priority)
    check_retention(body.prompt_cache_retention, body.cache_retention)
    if body.stream_options is not None:
        if not body.stream:
            raise invalid("stream_options needs stream: true", "stream_options")
        for name in ("include_obfuscation", "continuous_usage_stats"):
            if getattr(body.stream_options, name):
                raise unsupported(f"stream_options.{name}", (False,))
    if (body.logprobs or body.logprobs == 0) and body.logprobs is not False:
        check_logprobs(model, "logprobs")


def check_identity(request_id: str | None, priority: int | None) -> None:
    bounded("priority", priority, 1 - 2**31, 2**31 - 1)
    if request_id is not None and not REQUEST_ID.fullmatch(request_id):
        raise invalid("request_id must be 1 to 64 letters, digits, dots, underscores or dashes", "request_id")


def check_logprobs(model: ModelFacts, field: str) -> None:
    if not model.supports_logprobs:
        raise invalid("logprobs are not supported by the sampler of this server. Leave the field out", field, code="unsupported_parameter")


def check_retention(word: str | None, seconds: float | None) -> None:
    if word is None:
        return
    if word not in RETENTIONS:
        message = f'prompt_cache_retention must be "in_memory" or "24h", got {cut(word)!r}. For any other time use cache_retention, in seconds'
        raise invalid(message, "prompt_cache_retention")
    if seconds is not None:
        raise invalid("prompt_cache_retention and cache_retention exclude each other: both say how long the prefix stays cached", "prompt_cache_retention")


def check_size(job: Job, model: ModelFacts, options: HttpOptions) -> None:
    n, logprobs = job.params.n, job.params.logprobs or 0
    num_choices = len(job.prompts) * n
    if num_choices > options.max_choices:
        message = f"{len(job.prompts)} prompts with n = {n} are {num_choices} choices, at most {options.max_choices} are allowed (max_choices)"
        raise invalid(message, "n" if n > 1 else "prompt")
    max_tokens = min(job.params.max_tokens or model.max_model_len, model.max_model_len)
    num_entries = num_choices * max_tokens * (1 + logprobs)
    if num_entries > options.max_answer_entries and not job.stream:
        field = "max_tokens" if num_choices * max_tokens > options.max_answer_entries else "logprobs"
        name = job.names.get(field, field)
        message = f"{name}: {num_choices} choices of up to {max_tokens} tokens with {logprobs} logprobs each are {num_entries} entries, "
        raise invalid(f"{message}at most {options.max_answer_entries} are allowed (max_answer_entries). Ask for less, or stream", name)


def served_names(model: ModelFacts, options: HttpOptions) -> tuple[str, ...]:
    """Names to show: each is one model to a client."""
    return tuple(dict.fromkeys(options.served_model_names or (model.name,)))


def check_model(name: str, model: ModelFacts, options: HttpOptions) -> None:
    """Raises ApiError when requests may not use this name. Where none is configured, the model's aliases may be used too."""
    names = served_names(model, options)
    if name not in names and (options.served_model_names or name not in model.aliases):
        message = f"The model {cut(name)!r} does not exist here. This server has: {', '.join(names)}"
        raise ApiError(404, message, param="model", code="model_not_found")


def _template(body: ChatBody) -> Mapping[str, Any]:
    """Options of the chat template: the two fields of the request, then what the template itself may know."""
    add = not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt
    if add and body.continue_final_message:
        raise invalid("continue_final_message and add_generation_prompt exclude each other", "continue_final_message")
    own: dict[str, Any] = {"add_generation_prompt": add}
    if body.continue_final_message:
        own["continue_final_message"] = True
    for name in ("add_generation_prompt", "continue_final_message"):
        if name in body.chat_template_kwargs:
            raise invalid(f"{name} is a field of the request itself, not of chat_template_kwargs", f"chat_template_kwargs.{name}")
    return {**own, **body.chat_template_kwargs}


def _prompts(given: str | list[Any], max_prompts: int, max_tokens: int) -> tuple[Prompt, ...]:
    """Text, ids, or a list of either."""
    if isinstance(given, str):
        return (_prompt(given, "prompt", max_tokens),)
    if not given:
        raise empty("prompt")
    if isinstance(given[0], int) and not isinstance(given[0], bool):
        return (_prompt(given, "prompt", max_tokens),)
    if len(given) > max_prompts:
        raise invalid(f"prompt holds {len(given)} prompts, at most {max_prompts} are allowed", "prompt")
    return tuple(_prompt(item, f"prompt[{index}]", max_tokens) for index, item in enumerate(given))


def _prompt(item: Any, at: str, max_tokens: int) -> Prompt:
    if not isinstance(item, str | list):
        raise invalid(f"{at} must be a string or an array of token ids", at, code="invalid_type")
    if not item:
        raise empty(at)
    if isinstance(item, str):
        return Prompt(text=item)
    if len(item) >= max_tokens:  # before its ids are looked at: millions of them would hold up every stream
        message = f"{at} has {len(item)} tokens, but the context of this model is {max_tokens} tokens, one of them to generate"
        raise invalid(message, at, code="context_length_exceeded")
    return Prompt(token_ids=tuple(convert(item, list[int], at)))


def empty(at: str) -> ApiError:
    return invalid(f"{at} is empty: there is nothing to continue", at, code="empty_prompt")


def bounded(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise invalid(f"{name} must be an integer from {least} to {most}, got {cut(str(value))}", name)

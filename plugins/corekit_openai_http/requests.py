"""A request as the engine sees it, and the checks that endpoints share. Knows no endpoint's fields; nothing of sockets or of how answers look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from corekit.api import ModelFacts, Prompt, SamplingParams

from .errors import ApiError, invalid
from .fields import cut
from .ids import REQUEST_ID
from .options import HttpOptions
from .shown import Shown

_ID = re.compile(r"0|-?[1-9][0-9]{0,17}")

RETENTIONS: Mapping[str, float] = {"in_memory": 0.0, "24h": 24 * 3600.0}
"""OpenAI's words for how long a prefix stays cached, in seconds."""

_SAMPLING = (
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

_FRAME = 64
"""Tokens that a chat template may put around a message, more or less: for a bound of what is shown."""


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
    shown: Shown = field(default_factory=Shown)
    fingerprint: str = ""
    """Of the server's software and model; empty: the answer has none."""


class Samples(Protocol):
    """A body whose fields have the engine's names, but for OpenAI's word for how long a prefix stays cached."""

    prompt_cache_retention: str | None


def sampling(body: Samples) -> dict[str, Any]:
    """Of a body, what the engine takes as it is."""
    given = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if body.prompt_cache_retention is not None:
        given["cache_retention"] = RETENTIONS[body.prompt_cache_retention]
    return given


def biases(given: dict[str, float]) -> dict[int, float]:
    """JSON writes token ids as text."""
    for key in given:
        if not _ID.fullmatch(key):
            raise invalid(f'logit_bias must have token ids as keys, such as {{"50256": -100}}, got {cut(key)!r}', "logit_bias")
    return {int(key): value for key, value in given.items()}


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


def served_names(model: ModelFacts, options: HttpOptions) -> tuple[str, ...]:
    """Names to show: each is one model to a client."""
    return tuple(dict.fromkeys(options.served_model_names or (model.name,)))


def check_model(name: str, model: ModelFacts, options: HttpOptions) -> None:
    """Raises ApiError when requests may not use this name. Where none is configured, the model's aliases may be used too."""
    names = served_names(model, options)
    if name not in names and (options.served_model_names or name not in model.aliases):
        message = f"The model {cut(name)!r} does not exist here. This server has: {', '.join(names)}"
        raise ApiError(404, message, param="model", code="model_not_found")


def empty(at: str) -> ApiError:
    return invalid(f"{at} is empty: there is nothing to continue", at, code="empty_prompt")


def bounded(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise invalid(f"{name} must be an integer from {least} to {most}, got {cut(str(value))}", name)


def check_size(job: Job, model: ModelFacts, options: HttpOptions) -> None:
    """Bounds of the answer as a whole. Raises ApiError that names the field to lower."""
    n, logprobs = job.params.n, job.params.logprobs or 0
    num_choices = len(job.prompts) * n
    if num_choices > options.max_choices:
        name = "n" if job.shown.best is None else "best_of"
        message = f"{len(job.prompts)} prompts with {name} = {n} are {num_choices} choices, at most {options.max_choices} are allowed (max_choices)"
        raise invalid(message, name if n > 1 else "prompt")
    _check_prompts(job, model, options)
    max_tokens = min(job.params.max_tokens or model.max_model_len, model.max_model_len)
    num_entries = num_choices * max_tokens * (1 + logprobs)
    if num_entries > options.max_answer_entries and not job.stream:
        field = "max_tokens" if num_choices * max_tokens > options.max_answer_entries else "logprobs"
        name = job.names.get(field, field)
        message = f"{name}: {num_choices} choices of up to {max_tokens} tokens with {logprobs} logprobs each are {num_entries} entries, "
        raise invalid(f"{message}at most {options.max_answer_entries} are allowed (max_answer_entries). Ask for less, or stream", name)


def _check_prompts(job: Job, model: ModelFacts, options: HttpOptions) -> None:
    """What is shown of the prompts comes in one piece, in a stream too."""
    n, shown = job.params.n, job.shown
    shows_echo = shown.echo and shown.logprobs is not None
    if not shows_echo and shown.prompt_logprobs is None:
        return
    width = (1 + (shown.logprobs or 0) if shows_echo else 0) + (0 if shown.prompt_logprobs is None else 1 + shown.prompt_logprobs)
    num_entries = n * width * sum(_most_tokens(prompt, model) for prompt in job.prompts)
    if num_entries > options.max_answer_entries:
        name = "logprobs" if shown.prompt_logprobs is None else "prompt_logprobs"
        message = f"{name}: the prompt's logprobs are up to {num_entries} entries with {n} choices for each prompt, "
        raise invalid(f"{message}at most {options.max_answer_entries} are allowed (max_answer_entries). Ask for less", name)


def _most_tokens(prompt: Prompt, model: ModelFacts) -> int:
    """A token is at least a byte of text."""
    if prompt.token_ids is not None:
        num_tokens = len(prompt.token_ids)
    elif prompt.text is not None:
        num_tokens = 4 * len(prompt.text) + 2
    else:
        num_tokens = sum(_FRAME + _num_bytes(message) for message in prompt.messages or ())
    return min(num_tokens, prompt.max_tokens or model.max_model_len, model.max_model_len)


def _num_bytes(value: Any) -> int:
    if isinstance(value, str):
        return 4 * len(value)
    if isinstance(value, Mapping):
        return sum(_num_bytes(key) + _num_bytes(item) for key, item in value.items())
    return sum(map(_num_bytes, value)) if isinstance(value, list | tuple) else 20

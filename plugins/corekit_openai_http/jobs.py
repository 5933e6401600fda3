"""Bodies of the endpoints that answer with choices to jobs for the engine. Knows the fields' meaning; nothing of sockets or of how answers look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corekit.api import ModelFacts, Prompt, SamplingParams
from corekit.api.types import MAX_TOP_LOGPROBS

from .bodies import ChatBody, Common, CompletionBody, StreamOptions
from .errors import invalid
from .fields import convert, cut, drop_without_effect, unsupported
from .messages import read_messages
from .options import HttpOptions
from .prompts import read_prompts
from .requests import Job, biases, bounded, check_identity, check_logprobs, check_model, check_retention, check_size, sampling
from .shown import Shown
from .software import fingerprint

MAX_INTERVAL = 65536
_OF_TEMPLATE = ("reasoning_effort", "documents")
"""Fields that mean what the model's chat template makes of them."""


def completion_job(fields: dict[str, Any], model: ModelFacts, options: HttpOptions) -> Job:
    body = convert(drop_without_effect(fields), CompletionBody)
    _check_common(body, model, options)
    bounded("logprobs", body.logprobs, 0, MAX_TOP_LOGPROBS)
    max_tokens = 16 if body.max_tokens is None else body.max_tokens
    bounded("max_tokens", max_tokens, 0, 2**31 - 1)
    if not max_tokens and body.min_tokens:
        raise invalid(f"min_tokens must be an integer from 0 to max_tokens, which is 0, got {cut(str(body.min_tokens))}", "min_tokens")
    n = body.n or 1
    num_drawn = _num_drawn(body, n, model, options)
    prompts = read_prompts(
        body.prompt,
        max_prompts=options.max_prompts,
        context=model.max_model_len,
        keep=_kept(body, max_tokens, model),
        add_special_tokens=body.add_special_tokens,
    )
    shown = _shown(body, logprobs=body.logprobs, best=n if num_drawn > n else None, nothing=not max_tokens, echo=body.echo)
    job = _job(body, prompts, shown, n=num_drawn, max_tokens=max_tokens or 1, names={}, model=model)
    check_size(job, model, options)
    return job


def chat_job(fields: dict[str, Any], model: ModelFacts, options: HttpOptions) -> Job:
    body = convert(drop_without_effect(fields), ChatBody)
    _check_common(body, model, options)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    bounded("top_logprobs", body.top_logprobs, 0, MAX_TOP_LOGPROBS)
    bounded("max_completion_tokens", body.max_completion_tokens, 1, 2**31 - 1)
    if body.add_special_tokens:  # the template writes them
        raise unsupported("add_special_tokens", (False,))
    names = {
        "logprobs": "top_logprobs" if body.top_logprobs is not None else "logprobs",
        "prompt": "messages",
        "template": next((name for name in _OF_TEMPLATE if getattr(body, name) is not None), "chat_template_kwargs"),
    }
    max_tokens = body.max_tokens
    if body.max_completion_tokens is not None:
        max_tokens = body.max_completion_tokens
        names["max_tokens"] = "max_completion_tokens"
    messages = read_messages(body.messages)
    prompt = Prompt(messages=messages, template=_template(body), max_tokens=_kept(body, max_tokens, model))
    said = messages[-1]["content"] if body.echo and messages[-1]["role"] == "assistant" else ""
    shown = _shown(body, logprobs=(body.top_logprobs or 0) if body.logprobs else None, before=said)
    job = _job(body, (prompt,), shown, n=body.n or 1, max_tokens=max_tokens, names=names, model=model)
    check_size(job, model, options)
    return job


def _shown(body: Common, **more: Any) -> Shown:
    stream = body.stream_options or StreamOptions()
    return Shown(
        prompt_logprobs=body.prompt_logprobs,
        token_ids=body.return_token_ids,
        tokens_as_ids=body.return_tokens_as_token_ids,
        usage_so_far=bool(stream.include_usage and stream.continuous_usage_stats),
        obfuscated=bool(stream.include_obfuscation),
        interval=body.stream_interval or 1,
        **more,
    )


def _job(body: Common, prompts: tuple[Prompt, ...], shown: Shown, *, n: int, max_tokens: int | None, names: dict[str, str], model: ModelFacts) -> Job:
    of_prompt = [asked for asked in (shown.prompt_logprobs, shown.logprobs if shown.echo else None) if asked is not None]
    return Job(
        model=body.model,
        prompts=prompts,
        params=SamplingParams(
            **sampling(body),
            n=n,
            logit_bias=biases(body.logit_bias or {}),
            max_tokens=max_tokens,
            logprobs=0 if shown.logprobs is None and shown.best is not None else shown.logprobs,  # they tell which are the best
            prompt_logprobs=max(of_prompt, default=None),
        ),
        stream=body.stream,
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        request_id=body.request_id,
        priority=body.priority or 0,
        names=names,
        shown=shown,
        fingerprint=fingerprint(model),
    )


def _check_common(body: CompletionBody | ChatBody, model: ModelFacts, options: HttpOptions) -> None:
    check_model(body.model, model, options)
    bounded("n", body.n, 1, options.max_n)
    check_identity(body.request_id, body.priority)
    check_retention(body.prompt_cache_retention, body.cache_retention)
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream: true", "stream_options")
    bounded("stream_interval", body.stream_interval, 1, MAX_INTERVAL)
    bounded("prompt_logprobs", body.prompt_logprobs, 0, MAX_TOP_LOGPROBS)
    if (body.logprobs or body.logprobs == 0) and body.logprobs is not False:
        check_logprobs(model, "logprobs")
    if body.prompt_logprobs is not None:
        check_logprobs(model, "prompt_logprobs")


def _num_drawn(body: CompletionBody, n: int, model: ModelFacts, options: HttpOptions) -> int:
    """Samples of each prompt: as many as are shown, or `best_of`."""
    best_of = body.best_of
    if best_of is None:
        return n
    bounded("best_of", best_of, 1, options.max_n)
    if best_of < n:
        raise invalid(f"best_of must be at least n, which is {n}, got {best_of}: the best n of so many are answered", "best_of")
    if best_of > n:
        check_logprobs(model, "best_of")
        if body.stream:
            raise invalid("best_of above n cannot be streamed: which are the best is known at their end alone. Leave out best_of or stream", "best_of")
    return best_of


def _kept(body: Common, max_tokens: int | None, model: ModelFacts) -> int | None:
    """Tokens of each prompt that are kept; -1 is as many as leave room for the answer."""
    asked = body.truncate_prompt_tokens
    bounded("truncate_prompt_tokens", asked, -1, 2**31 - 1)
    if asked == 0:
        raise invalid("truncate_prompt_tokens must not be 0: there would be nothing to continue. -1 keeps what fits", "truncate_prompt_tokens")
    return max(1, model.max_model_len - (max_tokens or 1)) if asked == -1 else asked


def _template(body: ChatBody) -> Mapping[str, Any]:
    """Options of the chat template: the fields of the request, then what the template itself may know."""
    add = not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt
    if add and body.continue_final_message:
        raise invalid("continue_final_message and add_generation_prompt exclude each other", "continue_final_message")
    own: dict[str, Any] = {"add_generation_prompt": add}
    if body.continue_final_message:
        own["continue_final_message"] = True
    for name in _OF_TEMPLATE:
        if (value := getattr(body, name)) is not None:
            own[name] = value
    for name in ("add_generation_prompt", "continue_final_message", *_OF_TEMPLATE):
        if name in body.chat_template_kwargs:
            raise invalid(f"{name} is a field of the request itself, not of chat_template_kwargs", f"chat_template_kwargs.{name}")
    return {**own, **body.chat_template_kwargs}

"""From what Python users write to what the engine's client takes: prompts, conversations, parameters. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corekit.api import InvalidRequest, Prompt, SamplingParams

Message = Mapping[str, Any]
AnyPrompt = str | Prompt | Sequence[int]


def as_prompt(prompt: object, name: str = "prompt") -> Prompt:
    """One prompt. name: what to call it in the refusal of what is none."""
    if isinstance(prompt, Prompt):
        return prompt
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise InvalidRequest(f"{name} must be text, a list of token ids or a Prompt, got {type(prompt).__name__}", field="prompt")
    for index, id in enumerate(prompt):
        if not isinstance(id, int) or isinstance(id, bool):
            raise InvalidRequest(f"{name}[{index}] must be a token id, got {id!r:.60}", field="prompt")
    return Prompt(token_ids=tuple(prompt))


def as_conversation(messages: object, name: str = "messages") -> Prompt:
    """One conversation, to be answered through the model's chat template."""
    wanted = 'must be a mapping with a role that is text, as in {"role": "user", "content": "Hello"}'
    given = listed(messages, name, "a list of messages")
    for index, message in enumerate(given):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"{name}[{index}] {wanted}, got {message!r:.200}", field="messages")
    return Prompt(messages=tuple(given))


def as_params(params: SamplingParams | None, default: SamplingParams) -> SamplingParams:
    given: object = default if params is None else params
    if not isinstance(given, SamplingParams):
        raise InvalidRequest(f"params must be SamplingParams, as in SamplingParams(max_tokens=3), got {type(given).__name__}", field="params")
    return given


def are_ids(prompts: object) -> bool:
    """One prompt of ids, not a list of prompts. An empty list is one of no prompts."""
    return isinstance(prompts, Sequence) and bool(prompts) and all(isinstance(item, int) for item in prompts)


def listed(given: object, name: str, wanted: str) -> list[Any]:
    """given as a list. A text, or a table, could be walked through as well, and is never meant so."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequest(f"{name} must be {wanted}, got {type(given).__name__}", field=name.partition("[")[0])
    return list(given)


def each(params: SamplingParams | Sequence[SamplingParams], count: int) -> Sequence[SamplingParams]:
    """Parameters for each of count prompts: one for all, or a list of as many."""
    if isinstance(params, SamplingParams):
        return [params] * count
    given = listed(params, "params", "SamplingParams, as in SamplingParams(max_tokens=3), or a list of those")
    if len(given) != count:
        raise InvalidRequest(f"params must be one for all or one for each of the {count} prompts, got {len(given)}", field="params")
    if wrong := [index for index, one in enumerate(given) if not isinstance(one, SamplingParams)]:
        raise InvalidRequest(f"params[{wrong[0]}] must be SamplingParams, got {type(given[wrong[0]]).__name__}", field="params")
    return given

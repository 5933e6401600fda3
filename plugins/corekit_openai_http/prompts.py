"""Prompts of a completions request: text, ids, or a list of either. Knows the context's length; nothing of chats."""

from __future__ import annotations

from typing import Any

from corekit.api import Prompt

from .errors import invalid
from .fields import convert
from .requests import empty


def read_prompts(given: str | list[Any], *, max_prompts: int, context: int, keep: int | None, add_special_tokens: bool) -> tuple[Prompt, ...]:
    """keep: only so many tokens of each, the last ones; None: all."""
    if isinstance(given, str) or (given and isinstance(given[0], int) and not isinstance(given[0], bool)):
        return (_prompt(given, "prompt", context, keep, add_special_tokens),)
    if not given:
        raise empty("prompt")
    if len(given) > max_prompts:
        raise invalid(f"prompt holds {len(given)} prompts, at most {max_prompts} are allowed", "prompt")
    return tuple(_prompt(item, f"prompt[{index}]", context, keep, add_special_tokens) for index, item in enumerate(given))


def _prompt(item: Any, at: str, context: int, keep: int | None, add_special_tokens: bool) -> Prompt:
    if not isinstance(item, str | list):
        raise invalid(f"{at} must be a string or an array of token ids", at, code="invalid_type")
    if not item:
        raise empty(at)
    if isinstance(item, str):
        return Prompt(text=item, add_special_tokens=add_special_tokens, max_tokens=keep)
    kept = item if keep is None else item[-keep:]
    if len(kept) >= context:  # before its ids are looked at: millions of them would hold up every stream
        message = f"{at} has {len(kept)} tokens, but this model's maximum context length is {context} tokens, one of them to generate"
        raise invalid(message, at, code="context_length_exceeded")
    return Prompt(token_ids=tuple(convert(kept, list[int], at)))

"""Messages of a chat request to what a chat template takes: roles and plain text. Knows no template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .errors import invalid
from .fields import convert, unsupported

MAX_MESSAGES = 2048
_ROLES: Mapping[str, str] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""`developer` is the newer word for `system`; templates know the older one."""
_UNSUPPORTED = ("name", "tool_calls", "tool_call_id", "function_call", "audio", "refusal", "annotations", "reasoning_content", "reasoning")


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str | list[Any]


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    text: str


def read_messages(given: list[Any]) -> tuple[Mapping[str, str], ...]:
    """Checked messages with text content; several text parts become lines."""
    if not 1 <= len(given) <= MAX_MESSAGES:
        raise invalid(f"messages must hold from 1 to {MAX_MESSAGES} messages, got {len(given)}", "messages", code=None if given else "empty_prompt")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(given))


def _message(item: Any, at: str) -> Mapping[str, str]:
    fields = {name: value for name, value in item.items() if value is not None} if isinstance(item, dict) else item
    if isinstance(fields, dict):
        for name in _UNSUPPORTED:
            if name in fields and fields.pop(name) != []:
                raise unsupported(f"{at}.{name}")
    message = convert(fields, Message, at)
    if message.role in ("tool", "function"):
        raise invalid(f"{at}.role {message.role!r} is not supported: this server has no tool calls", f"{at}.role", code="unsupported_value")
    if message.role not in _ROLES:
        raise invalid(f"{at}.role must be one of {', '.join(_ROLES)}", f"{at}.role", code="invalid_value")
    return {"role": _ROLES[message.role], "content": message.content if isinstance(message.content, str) else _joined(message.content, f"{at}.content")}


def _joined(parts: list[Any], at: str) -> str:
    if not parts:
        raise invalid(f"{at} is an empty array; give a string or text parts", at)
    texts = []
    for index, part in enumerate(parts):
        here = f"{at}[{index}]"
        if isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] != "text":
            raise invalid(f"{here}.type {part['type'][:40]!r} is not supported: this server takes text parts only", f"{here}.type", code="unsupported_value")
        texts.append(convert(part, TextPart, here).text)
    return "\n".join(texts)

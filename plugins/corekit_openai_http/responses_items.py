"""Items of a `/v1/responses` request to messages of a chat template: what was said, and calls of tools as history. Knows no template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .errors import ApiError, invalid
from .fields import convert, cut
from .messages import MAX_MESSAGES, FunctionCall, as_template

ROLES: Mapping[str, str] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""`developer` is the newer word for `system`; templates know the older one."""

PARTS: Mapping[str, str] = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Type of a part of a message -> the field that has its text."""

ITEMS = ("message", "reasoning", "function_call", "function_call_output")
STATUSES = ("in_progress", "completed", "incomplete")
MAX_NAME_CHARS = 256
"""Of the name of a function and the id of a call."""


class _Item(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str = "message"
    id: str | None = None
    status: str | None = None


class _Message(_Item, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str | list[Any]
    phase: str | None = None


class _Reasoning(_Item, kw_only=True, forbid_unknown_fields=True):
    summary: list[Any] = []
    content: list[Any] = []
    encrypted_content: str | None = None


class _Call(_Item, kw_only=True, forbid_unknown_fields=True):
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class _CallOutput(_Item, kw_only=True, forbid_unknown_fields=True):
    call_id: str
    output: str | list[Any]
    name: str | None = None
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class _Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an answer of this server has in a part may come back, and says nothing new."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Conversation:
    """Messages as a template takes them, put together item by item.

    Invariant: calls that follow each other, or what the assistant said, are one message of the assistant.
    """

    def __init__(self, instructions: str) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
        self.is_unfinished = False
        """The last item is a message of the assistant that was not completed: it is to be continued."""
        self._reasoning = ""
        self._names: dict[str, str] = {}

    def add(self, item: Any, at: str) -> None:
        """Raises ApiError that names the place of what is wrong."""
        fields = {name: value for name, value in item.items() if value is not None} if isinstance(item, dict) else item
        kind = fields.get("type", "message") if isinstance(fields, dict) else "message"
        self.is_unfinished = False
        if kind == "message":
            self._add_message(convert(fields, _Message, at), at)
        elif kind == "reasoning":
            self._reasoning = _text(convert(fields, _Reasoning, at).content, f"{at}.content", {"reasoning_text": "text"})
        elif kind == "function_call":
            self._add_call(convert(fields, _Call, at), at)
        elif kind == "function_call_output":
            self._add_output(convert(fields, _CallOutput, at), at)
        else:
            why = "this server stores nothing that could be referred to" if kind == "item_reference" else f"this server takes {', '.join(ITEMS)}"
            raise invalid(f"{at}.type {cut(str(kind))!r} is not supported: {why}", f"{at}.type", code="unsupported_value")

    def _add_message(self, message: _Message, at: str) -> None:
        if message.role not in ROLES:
            raise invalid(f"{at}.role must be one of {', '.join(ROLES)}, got {cut(message.role)!r}", f"{at}.role", code="invalid_value")
        _check_status(message, at)
        role, text = ROLES[message.role], _text(message.content, f"{at}.content", PARTS)
        if role == "assistant":
            self.messages.append({"role": role, "content": text, **self._thought()})
            self.is_unfinished = message.status in ("in_progress", "incomplete")
        elif role == "system" and len(self.messages) == 1 and self.messages[0]["role"] == "system":
            self.messages[0]["content"] += f"\n\n{text}"  # many templates know one message of the system, at the begin
        else:
            self.messages.append({"role": role, "content": text})
        self._reasoning = ""

    def _add_call(self, call: _Call, at: str) -> None:
        _check_status(call, at)
        for name in ("call_id", "name"):
            if not 1 <= len(getattr(call, name)) <= MAX_NAME_CHARS:
                raise invalid(f"{at}.{name} must have 1 to {MAX_NAME_CHARS} characters, got {len(getattr(call, name))}", f"{at}.{name}")
        if not (self.messages and self.messages[-1]["role"] == "assistant"):
            self.messages.append({"role": "assistant", "content": "", **self._thought()})
        called = as_template(FunctionCall(name=call.name, arguments=call.arguments))
        self.messages[-1].setdefault("tool_calls", []).append({"id": call.call_id, **called})
        self._names[call.call_id] = call.name
        self._reasoning = ""

    def _add_output(self, given: _CallOutput, at: str) -> None:
        _check_status(given, at)
        if given.call_id not in self._names:
            raise invalid(f"{at}.call_id {cut(given.call_id)!r} belongs to no function_call before it", f"{at}.call_id", code="invalid_value")
        text = _text(given.output, f"{at}.output", PARTS)
        self.messages.append({"role": "tool", "tool_call_id": given.call_id, "name": self._names[given.call_id], "content": text})
        self._reasoning = ""

    def _thought(self) -> dict[str, str]:
        return {"reasoning_content": self._reasoning} if self._reasoning else {}


def read_input(given: str | list[Any], instructions: str) -> Conversation:
    """What was said so far. Raises ApiError that names the place of what is wrong."""
    conversation = Conversation(instructions)
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not 1 <= len(items) <= MAX_MESSAGES:
        raise invalid(f"input must be text or hold from 1 to {MAX_MESSAGES} items, got {len(items)}", "input", code=None if items else "empty_prompt")
    for index, item in enumerate(items):
        conversation.add(item, "input" if isinstance(given, str) else f"input[{index}]")
    if not any(message["role"] != "system" for message in conversation.messages):
        raise invalid("input has nothing to answer: send a message of the user, too", "input", code="empty_prompt")
    return conversation


def _text(content: str | list[Any], at: str, kinds: Mapping[str, str]) -> str:
    """Several parts become lines."""
    if isinstance(content, str):
        return content
    texts = []
    for index, item in enumerate(content):
        here = f"{at}[{index}]"
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            raise invalid(f"{here}.type {cut(kind)!r} is not supported: this server takes {', '.join(kinds)}", f"{here}.type", code="unsupported_value")
        part = convert({name: value for name, value in item.items() if value is not None} if isinstance(item, dict) else item, _Part, here)
        text = getattr(part, kinds[part.type])
        if text is None:
            raise _missing(f"{here}.{kinds[part.type]}")
        texts.append(text)
    return "\n".join(texts)


def _missing(at: str) -> ApiError:
    return invalid(f"{at} is required", at, code="missing_required_parameter")


def _check_status(item: _Item, at: str) -> None:
    if item.status is not None and item.status not in STATUSES:
        raise invalid(f"{at}.status must be one of {', '.join(STATUSES)}, got {cut(item.status)!r}", f"{at}.status", code="invalid_value")

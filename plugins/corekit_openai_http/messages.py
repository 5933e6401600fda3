"""Messages of a chat request to what a chat template takes: roles, plain text, and the tool calls of earlier answers. Knows no template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .errors import invalid
from .fields import MAX_DEPTH, convert, cut, deeper_than, unsupported

MAX_MESSAGES = 2048
MAX_TOOL_CALLS = 128
_ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""As templates know them: `developer` is the newer word for `system`, `function` the older one for `tool`."""
_THOUGHTS = ("reasoning_content", "reasoning")
_OF_ROLE: Mapping[str, frozenset[str]] = {
    "assistant": frozenset({"tool_calls", "function_call", "refusal", "annotations", "audio", *_THOUGHTS}),
    "tool": frozenset({"tool_call_id"}),
}
"""Fields that messages of one role alone may have."""


class FunctionCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: str | dict[str, Any]


class ToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    function: FunctionCall
    id: str | None = None
    type: str = "function"
    index: int | None = None


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str | list[Any] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    text: str


class RefusalPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    refusal: str


def read_messages(given: list[Any]) -> tuple[Mapping[str, Any], ...]:
    """Checked messages, as Hugging Face's templates expect them; several parts of text become lines."""
    if not 1 <= len(given) <= MAX_MESSAGES:
        raise invalid(f"messages must hold from 1 to {MAX_MESSAGES} messages, got {len(given)}", "messages", code=None if given else "empty_prompt")
    called: dict[str, str] = {}
    return tuple(_message(item, f"messages[{index}]", called) for index, item in enumerate(given))


def _message(item: Any, at: str, called: dict[str, str]) -> Mapping[str, Any]:
    """called: id of each call so far -> the function's name, which some templates write beside its result."""
    message = convert({name: value for name, value in item.items() if value is not None} if isinstance(item, dict) else item, Message, at)
    if message.role not in _ROLES:
        raise invalid(f"{at}.role must be one of {', '.join(_ROLES)}, got {cut(message.role)!r}", f"{at}.role", code="invalid_value")
    for role, names in _OF_ROLE.items():
        for name in names if role != message.role else ():
            if getattr(message, name) not in (None, []):
                raise invalid(f"{at}.{name} is a field of messages with role {role}, this one's is {message.role}", f"{at}.{name}")
    if message.audio is not None:
        raise unsupported(f"{at}.audio")
    read: dict[str, Any] = {"role": _ROLES[message.role]}
    calls = _calls(message, at)
    for call in calls:
        if "id" in call:
            called[call["id"]] = call["function"]["name"]
    read["content"] = _content(message, at, may_lack=bool(calls))
    if calls:
        read["tool_calls"] = calls
    if message.role == "tool":
        read["tool_call_id"] = _required(message.tool_call_id, f"{at}.tool_call_id")
    speaker = _required(message.name, f"{at}.name") if message.role == "function" else message.name or called.get(message.tool_call_id or "")
    if speaker:
        read["name"] = speaker
    return read | {name: thoughts for name in _THOUGHTS if (thoughts := getattr(message, name))}


def _required(value: str | None, at: str) -> str:
    if not value:
        raise invalid(f"{at} is required", at, code="missing_required_parameter")
    return value


def _content(message: Message, at: str, *, may_lack: bool) -> str:
    """A refusal is what the assistant said, too."""
    said = message.content
    if said is None:
        if message.refusal is None and not may_lack and message.role != "function":
            raise invalid(f"{at}.content is required", f"{at}.content", code="missing_required_parameter")
        return message.refusal or ""
    text = said if isinstance(said, str) else _joined(said, f"{at}.content", message.role)
    return "\n".join(filter(None, (text, message.refusal)))


def _joined(parts: list[Any], at: str, role: str) -> str:
    if not parts:
        raise invalid(f"{at} is an empty array; give a string or text parts", at)
    texts = []
    for index, part in enumerate(parts):
        here = f"{at}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal" and role == "assistant":
            texts.append(convert(part, RefusalPart, here).refusal)
        elif isinstance(kind, str) and kind != "text":
            message = f"{here}.type {cut(kind)!r} is not supported: this server takes text parts only"
            raise invalid(message, f"{here}.type", code="unsupported_value")
        else:
            texts.append(convert(part, TextPart, here).text)
    return "\n".join(texts)


def _calls(message: Message, at: str) -> list[dict[str, Any]]:
    """What an earlier answer called, with arguments as a mapping where they are one: templates write them in their own way."""
    calls = message.tool_calls or []
    if len(calls) > MAX_TOOL_CALLS:
        raise invalid(f"{at}.tool_calls must hold at most {MAX_TOOL_CALLS} calls, got {len(calls)}", f"{at}.tool_calls")
    read = [_call(call, f"{at}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return [*read, as_template(message.function_call)] if message.function_call is not None else read


def _call(given: Any, at: str) -> dict[str, Any]:
    if isinstance(given, dict) and isinstance(given.get("type"), str) and given["type"] != "function":
        raise invalid(f"{at}.type {cut(given['type'])!r} is not supported: this server takes calls of functions only", f"{at}.type", code="unsupported_value")
    call = convert(given, ToolCall, at)
    return ({"id": call.id} if call.id else {}) | as_template(call.function)


def as_template(call: FunctionCall) -> dict[str, Any]:
    """A call as templates take it: with arguments as an object, where they are one."""
    arguments: Any = call.arguments
    if isinstance(arguments, str):
        try:
            read = msgspec.json.decode(arguments)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):  # a model wrote it: it may be anything
            read = None
        arguments = read if isinstance(read, dict) and not deeper_than(read, MAX_DEPTH) else arguments
    return {"type": "function", "function": {"name": call.name, "arguments": arguments}}

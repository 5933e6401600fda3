"""Bytes of a body to checked fields: depth, nulls, fields that are not supported, types. Knows nothing of what fields mean."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from .errors import ApiError, invalid

MAX_DEPTH = 64
MAX_CONTAINERS = 100_000
"""Arrays and objects of one body: many more than prompts and messages need, and few enough to be made in a few hundredths of a second."""

MAX_SHOWN = 60
"""Characters of a client's own word in an error."""

HARMLESS = frozenset({"metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "user", "verbosity"})
"""Accepted without effect: they ask for nothing that would change an answer."""

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "chat_template": (),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": (),
    "response_format": ({"type": "text"},),
    "session_id": (),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_token_budget": (),
    "tool_choice": ("none",),
    "tools": ([],),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""Fields that clients know and this server refuses, with the values that mean the same as leaving the field out."""

_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_FIELD = re.compile(r"^Object (missing required|contains unknown) field `([^`]*)`$")
_JSON_NAMES: Mapping[str, str] = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}
T = TypeVar("T")


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body, without its nulls: null means absent."""
    if not body.strip():
        raise invalid("The body is empty; send a JSON object", code="invalid_json")
    num_brackets = _num_brackets(body)
    if num_brackets > MAX_CONTAINERS and (num_brackets := _num_brackets(_without_strings(body))) > MAX_CONTAINERS:
        message = f"The body holds {num_brackets} arrays and objects, at most {MAX_CONTAINERS} are allowed"
        raise invalid(message, code="json_too_many_values")
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object", code="invalid_json")
    if num_brackets > MAX_DEPTH and deeper_than(value, MAX_DEPTH):  # counting is a thousand times faster than walking
        raise _too_deep()
    return {name: given for name, given in value.items() if given is not None}


def drop_without_effect(fields: dict[str, Any], *, harmless: frozenset[str] = HARMLESS, refused: Mapping[str, tuple[Any, ...]] = UNSUPPORTED) -> dict[str, Any]:
    """Leaves out harmless fields and neutral values. Raises ApiError for a refused field with any other value."""
    kept = {}
    for name, given in fields.items():
        if name in harmless:
            continue
        if name not in refused:
            kept[name] = given
        elif not any(given == neutral and isinstance(given, bool) == isinstance(neutral, bool) for neutral in refused[name]):
            raise unsupported(name, refused[name])
    return kept


def cut(text: str) -> str:
    """A client's own word, of any length, as an error shows it."""
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def unsupported(name: str, neutral: tuple[Any, ...] = ()) -> ApiError:
    accepted = f"; only {msgspec.json.encode(neutral[0]).decode()}, which changes nothing, is accepted" if neutral else ""
    return invalid(f"{name} is not supported by this server{accepted}. Leave it out", name, code="unsupported_parameter")


def convert(value: Any, kind: type[T], at: str = "") -> T:
    """`value` as a `kind`. Raises ApiError that names the field; `at` is where the value stands in the body."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _named(str(error), kind, at) from None


def _named(message: str, kind: type, at: str) -> ApiError:
    path = ""
    if found := _PATH.search(message):
        message, path = message[: found.start()], found[1]
    param = f"{at}.{path}" if at and path and not path.startswith("[") else at + path
    if field := _FIELD.match(message):
        own = cut(field[2])
        name = f"{param}.{own}" if param else own
        if field[1] == "missing required":
            return invalid(f"{name} is required", name, code="missing_required_parameter")
        near = difflib.get_close_matches(own, getattr(kind, "__struct_fields__", ()), 1) if not path else []
        return invalid(f"{name} is not a field that this server knows{f'. Did you mean {near[0]}?' if near else ''}", name, code="unknown_parameter")
    return invalid(f"{param or 'the body'} has a wrong value: {message[:1].lower()}{_in_json(message[1:])}", param or None, code="invalid_type")


def _in_json(message: str) -> str:
    """msgspec's words with the names that types have in JSON."""
    return re.sub(r"`([^`]*)`", lambda found: " or ".join(_JSON_NAMES.get(kind, kind) for kind in found[1].split(" | ")), message)


def _num_brackets(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _without_strings(body: bytes) -> bytes:
    return b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _too_deep() -> ApiError:
    return invalid(f"The body nests more than {MAX_DEPTH} levels deep", code="json_too_deep")


def deeper_than(value: dict[str, Any], limit: int) -> bool:
    level: list[Any] = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in (outer.values() if type(outer) is dict else outer) if type(inner) is dict or type(inner) is list]
        if not level:
            return False
    return True

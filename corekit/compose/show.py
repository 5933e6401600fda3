"""Prints a configuration as TOML with the origin of every value. What it prints is a valid file with the same meaning.

Where a secret stands it prints a variable's name instead, so that such a file is refused until somebody sets that variable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .config import Config
from .problems import Path, field_of
from .secrets import MARKS
from .tables import Table

HIDDEN = "env:NOT_SHOWN"
NOT_FOR_ALL: Mapping[Path, str] = {("block_allocator", "memory_utilization"): "GPU only"}
"""Keys that some machines refuse when they are given, and for which they are; what nobody gave is a comment."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def show(config: Config, is_secret: Callable[[Path], bool] = lambda path: False) -> Iterator[str]:
    """The lines of the file, all tables in the order of the design, every key with its value and origin."""
    for name in type(config).model_fields:
        if getattr(config, name) == () and config.is_given(name):  # before any table: TOML would take it for a key of that
            yield f"{name} = []".ljust(48) + f"# {config.origin(name)}"
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Table):
            yield from _table(config, (name,), value, f"[{_key(name)}]", is_secret)
        for index, element in enumerate(value if isinstance(value, tuple) else ()):
            yield from _table(config, (name, index), element, f"[[{_key(name)}]]", is_secret)


def _table(config: Config, path: Path, table: Table | Mapping[str, Any], header: str, is_secret: Callable[[Path], bool]) -> Iterator[str]:
    below: list[tuple[str, Mapping[str, Any]]] = []
    yield header
    for key, value in _items(table):
        origin = config.origin(*path, key)
        if origin == "default" and (only := NOT_FOR_ALL.get((*path, key))):
            yield f"# {key} = {_value(value)}".ljust(48) + f"# {origin}, {only}"
        elif value is None:
            yield f"# {key}: not set".ljust(48) + f"# {origin}"
        elif isinstance(value, Mapping):
            below.append((key, value))
        else:
            shown = _hidden(value) if is_secret((*path, key)) else value
            yield f"{_key(key)} = {_value(shown)}".ljust(48) + f"# {origin}"
    yield ""
    for key, inner in below:
        if inner:
            inside = ".".join(_key(str(part)) for part in (*path, key) if not isinstance(part, int))
            yield from _table(config, (*path, key), inner, f"[{inside}]", is_secret)


def _items(table: Table | Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if not isinstance(table, Table):
        yield from table.items()
        return
    for name in type(table).model_fields:
        field = field_of(type(table), name)
        yield (field.alias if field is not None and field.alias else name), getattr(table, name)


def _hidden(value: Any) -> Any:
    """value with every text in it hidden but names of variables and files, which are no secret."""
    if isinstance(value, str):
        return value if value.startswith(MARKS) else HIDDEN
    if isinstance(value, list | tuple):
        return [_hidden(element) for element in value]
    return {key: _hidden(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(element) for element in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    return str(value.isoformat()) if hasattr(value, "isoformat") else _text(str(value))

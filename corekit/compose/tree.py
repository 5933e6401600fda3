"""A configuration before it has types: nested tables, merged in layers, with the origin of every value. Knows no key by name."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tomli

from .errors import ConfigError, listed

Path = tuple[str | int, ...]

MAX_DIGITS = 300
"""Of an integer. Whatever it is compared with or divided by, a float among them, takes it, and every message can write it."""
TOO_LONG = f"an integer may have {MAX_DIGITS} digits at most, and this one has more. Write a smaller one"
_LONG = re.compile(rf"(?:[0-9]_?){{{MAX_DIGITS + 1},}}")


class Tree:
    """Every leaf of `values` (and every list as a whole) has an entry in `origins`."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[Path, str] = {}

    def merge(self, values: Mapping[str, Any], origin: str) -> None:
        """Tables are merged key by key; everything else, lists of tables included, replaces what was there."""
        for key, value in values.items():
            self._put(self.values, (), key, value, origin)

    def set(self, path: Sequence[str], value: object, origin: str) -> None:
        """One value by its path. An element of a list of tables is named by its index or by its `use`."""
        at: Any = self.values
        done: Path = ()
        for part in path[:-1]:
            if isinstance(at, list):
                index = _index(at, part, done, origin)
                at, done = at[index], (*done, index)
            else:
                at, done = at.setdefault(part, {}), (*done, part)
            if not isinstance(at, dict | list):
                raise ConfigError(f"{origin}: {'.'.join(map(str, done))} is a value, not a table")
        if isinstance(at, list):
            raise ConfigError(f"{origin}: {'.'.join(map(str, done))} is a list; name an element and a key, as in {path[0]}.0.use")
        self._put(at, done, path[-1], value, origin)

    def origin(self, path: Path) -> str | None:
        """Where the value at path, or the nearest thing around or in it, came from."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]]
        return next((origin for known, origin in self.origins.items() if known[: len(path)] == path), None)

    def _put(self, table: dict[str, Any], at: Path, key: str, value: object, origin: str) -> None:
        path = (*at, key)
        if isinstance(value, Mapping) and value:
            below = table.get(key)
            if not isinstance(below, dict):
                below = table[key] = {}
                self._forget(path)
            for name, inner in value.items():
                self._put(below, path, name, inner, origin)
            return
        if isinstance(value, Mapping) and isinstance(table.get(key), dict):
            return  # an empty table says nothing
        for where in long_integers(value, path):
            raise ConfigError(f"{place(where, origin)}: {TOO_LONG}")
        table[key] = copy.deepcopy(list(value) if isinstance(value, tuple) else value)
        self._forget(path)
        self.origins[path] = origin

    def _forget(self, path: Path) -> None:
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]


def _index(tables: list[Any], part: str, at: Path, origin: str) -> int:
    if part.isdecimal() and len(part) <= len(str(len(tables))) and int(part) < len(tables):
        return int(part)
    names = [table.get("use") for table in tables if isinstance(table, dict)]
    if part in names:
        return names.index(part)
    raise ConfigError(f"{origin}: [[{'.'.join(map(str, at))}]] has no element {part!r}. There: {listed(str(name) for name in names)}")


def place(path: Path, origin: str | None) -> str:
    """`origin: [table.subtable] key`, with what there is of it. An element of a list of tables is `[[table]] number 1`."""
    if origin == f"--set {'.'.join(map(str, path))}":
        return origin  # it names the key itself
    named = _element(path) if len(path) > 1 and isinstance(path[1], int) else _key(path)
    return f"{origin}: {named}" if origin else named


def _element(path: Path) -> str:
    below = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[2:])
    return f"[[{path[0]}]] number {int(path[1]) + 1}{below.replace('.', ', ', 1)}"


def _key(path: Path) -> str:
    index = f"[{path[-1]}]" if path and isinstance(path[-1], int) else ""
    *table, key = (path[:-1] if index else path) or ("",)
    return f"[{'.'.join(map(str, table))}] {key}{index}" if table else f"[{key}]{index}"


def long_integers(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where in value, which stands at path, an integer has more digits than any may have."""
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        yield path
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from long_integers(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from long_integers(inner, (*path, index))


def parse_toml(text: str) -> dict[str, Any]:
    """A document. An integer so long that Python reads it no more is there as a shorter one, which is still too long: the tree says where it stands."""
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError:
        raise
    except ValueError:
        return tomli.loads(_LONG.sub("9" * (MAX_DIGITS + 1), text))


def parse_value(text: str) -> Any:
    """Text from the environment or the command line: a TOML value if it is one, else the text itself."""
    try:
        document = parse_toml(f"value = {text}")
    except tomli.TOMLDecodeError:
        return text
    return document["value"] if set(document) == {"value"} else text

"""The configuration: defaults < file < environment < command line < Python argument, checked at once, origins kept.

Knows the tables and where values come from; nothing of plugins (their options are checked when the part is chosen).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli
from pydantic import PrivateAttr, ValidationError

from .errors import ConfigError
from .problems import keys, sentences, table_of
from .tables import ELSEWHERE, Table, Tables
from .tree import Tree, parse_toml, parse_value, place

PREFIX = "COREKIT__"


class Config(Tables):
    """A valid configuration. Immutable; knows the origin of every value that is not a default."""

    _tree: Tree = PrivateAttr(default_factory=Tree)

    def origin(self, *path: str | int) -> str:
        """Where the value at path came from: a file, a variable, an option, or "default"."""
        return self._tree.origin(path) or ("default" if not self.is_given(*path) else "Python argument")

    def is_given(self, *path: str | int) -> bool:
        """Whether anybody said something about path, even if it equals the default."""
        at: Any = self
        for part in path:
            if isinstance(at, Table):
                if part not in at.model_fields_set:
                    return False
                at = getattr(at, str(part))
            elif isinstance(at, Mapping | Sequence) and not isinstance(at, str):
                try:
                    at = at[part]  # type: ignore[call-overload, index, unused-ignore]
                except (KeyError, IndexError, TypeError):
                    return False
        return True

    def place(self, *path: str | int) -> str:
        """How to name a key in a message: `file: [table] key`."""
        origin = self.origin(*path)
        return place(path, None if origin == "default" else origin)


def load(
    file: Path | None = None,
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    source: str | None = None,
    options: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Config:
    """Merge every layer and check the result; raises ConfigError with all faults.

    overrides: `table.key=value` of `--set`. source and options (path -> value, dotted): what the command line has names
    for. given: nested tables from Python.
    """
    tree = Tree()
    tree.merge({"frontend": [{"use": "openai-http"}]}, "default")
    if file is not None:
        tree.merge(read_file(file), str(file))
    for name in sorted(environ or ()):
        if name.startswith(PREFIX):
            _from_environment(tree, name, (environ or {})[name])
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not all(name.strip().split(".")):
            raise ConfigError(f"--set {name}: must be table.key=value, as in --set scheduler.max_num_seqs=64")
        tree.set(name.strip().split("."), parse_value(text.strip()), f"--set {name.strip()}")
    if source is not None:
        tree.set(("model", "source"), source, "command line")
    for name, value in (options or {}).items():
        tree.set(name.split("."), value, "command line")
    tree.merge(nested(given or {}), "Python argument")
    return _checked(tree)


def read_file(file: Path) -> dict[str, Any]:
    try:
        return parse_toml(file.read_bytes().decode())
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: it must be UTF-8 ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}. Give the path of a TOML file, or none for the demo model.") from error


def nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Python arguments as tables. `scheduler={...}` is one; `scheduler.max_num_seqs` and the bare key, if one table alone has it, are short forms."""
    tables = {name: keys(table) for name, field in Tables.model_fields.items() if (table := table_of(field.annotation)) is not None}
    tree = Tree()
    for name, value in given.items():
        homes = [table for table, known in tables.items() if name in known and name not in ("use", "options")]
        if "." in name:
            tree.set(name.split("."), value, "Python argument")
        elif name not in Tables.model_fields and len(homes) == 1:
            tree.set((homes[0], name), value, "Python argument")
        else:
            tree.merge({name: value}, "Python argument")
    return tree.values


def _from_environment(tree: Tree, name: str, text: str) -> None:
    path = [part.lower() for part in name[len(PREFIX) :].split("__")]
    if not all(path):
        raise ConfigError(f"{name}: must be {PREFIX}TABLE__KEY, as in {PREFIX}SCHEDULER__MAX_NUM_SEQS")
    if path[:2] == ["block_allocator", "options"] and len(path) > 2:
        path[2] = path[2].replace("_", "-")  # names of layers have hyphens, which variables cannot
    tree.set(path, parse_value(text), name)


def _checked(tree: Tree) -> Config:
    try:
        config = Config.model_validate(tree.values)
    except ValidationError as error:
        hints = {key: f"[{name}] {key}" for name, field in Tables.model_fields.items() if (table := table_of(field.annotation)) for key in keys(table)}
        for common in ("use", "options"):
            hints.pop(common, None)
        raise ConfigError(sentences(error, Config, lambda path: place(path, tree.origin(path)), {**hints, **ELSEWHERE})) from None
    config._tree = tree
    return config

"""A part's options table, checked against the frozen dataclass that its provider declares. Knows no option by name.

A text value `env:NAME` stands for the variable NAME, so that secrets need not be in this file; of a secret, `file:PATH` stands for what that
file holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic_core import PydanticUndefined

from .catalog import Candidate
from .errors import ConfigError
from .problems import Path, sentences
from .secrets import read_secret_file, secret_names
from .tree import TOO_LONG, long_integers, parse_value

Place = Callable[[Path], str]
_MARK, _FILE_MARK = "env:", "file:"


def read_options(candidate: Candidate, raw: Mapping[str, Any], place: Place, environ: Mapping[str, str]) -> Any:
    """The options object of a provider (None when it declares none); raises ConfigError with every fault.

    `place` names a path below the options table as the user knows it.
    """
    declared = candidate.provider.options
    if declared is None:
        if raw:
            raise ConfigError([f"{place((key,))}: {candidate} takes no options" for key in raw])
        return None
    hints = field_types(candidate, declared)
    missing: dict[Path, str] = {}
    secret = secret_names(declared)
    values = {key: _resolved(value, (key,), hints.get(key), environ, missing, secret=key in secret) for key, value in raw.items()}
    problems = [f"{place(path)}: {reason}" for path, reason in missing.items()]
    try:
        model = _model(candidate, declared, hints)
        checked = model.model_validate(values)
    except ValidationError as error:
        found = sentences(error, model, place, secret=secret)
        more = [sentence for sentence in found if not any(sentence.startswith(f"{place(path)}:") for path in missing)]
        raise ConfigError(problems + more) from None
    known = {key: getattr(checked, _field(key)) for key in values.keys() - {path[0] for path in missing}}
    try:
        options = declared(**known)
    except (ValueError, TypeError) as error:
        if missing and isinstance(error, TypeError):
            raise ConfigError(problems) from None  # what it misses is among them
        raise ConfigError([*problems, f"{place(())}: {candidate}: {error}"]) from error
    if problems:
        raise ConfigError(problems)
    return options


def field_types(candidate: Candidate, declared: type) -> dict[str, Any]:
    if not dataclasses.is_dataclass(declared):
        raise ConfigError(f"{candidate}: its options type {declared.__qualname__} is not a dataclass; this is a fault of the plugin")
    try:
        hints = get_type_hints(declared, include_extras=True)
    except Exception as error:
        raise ConfigError(
            f"{candidate}: the annotations of its options {declared.__qualname__} cannot be read: {error}; this is a fault of the plugin"
        ) from error
    return {field.name: hints[field.name] for field in dataclasses.fields(declared) if field.init}


def _model(candidate: Candidate, declared: type, hints: Mapping[str, Any]) -> Any:
    """A strict model with the dataclass's fields. Unset ones are left to the dataclass, whose defaults then rule."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(declared):
        if field.name in hints:
            needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            fields[_field(field.name)] = (hints[field.name], Field(default=PydanticUndefined if needed else None, alias=field.name))
    try:
        return create_model(f"{declared.__name__}Table", __config__=ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True), **fields)
    except PydanticUserError as error:
        raise ConfigError(f"{candidate}: its options {declared.__qualname__} cannot be checked: {error.message}; this is a fault of the plugin") from error


def _field(name: str) -> str:
    return f"option_{name}"  # whatever the plugin calls its option, it never meets a name of pydantic's own


def _resolved(value: Any, path: Path, hint: Any, environ: Mapping[str, str], missing: dict[Path, str], *, secret: bool) -> Any:
    """value with variables and files put in (else `missing` says why), and lists as tuples where the dataclass wants tuples (TOML has only lists)."""
    if secret and isinstance(value, str) and value.startswith(_FILE_MARK):
        try:
            return read_secret_file(value[len(_FILE_MARK) :])
        except ValueError as error:
            missing[path] = f"{value!r}: {error}"
            return value
    if isinstance(value, str) and value.startswith(_MARK):
        name = value[len(_MARK) :]
        if name not in environ:
            missing[path] = f"{value!r}: the variable {name} is not set"
            return value
        if _mentions(hint, str):
            return environ[name]
        found = parse_value(environ[name])
        if any(long_integers(found, path)):
            missing[path] = f"{value!r}: {TOO_LONG}"
            return value
        return found
    if isinstance(value, list):
        inner = [_resolved(element, (*path, index), hint, environ, missing, secret=secret) for index, element in enumerate(value)]
        return tuple(inner) if _mentions(hint, tuple) else inner
    if isinstance(value, dict):
        return {key: _resolved(element, (*path, key), hint, environ, missing, secret=secret) for key, element in value.items()}
    return value


def _mentions(hint: Any, wanted: type) -> bool:
    return hint is wanted or get_origin(hint) is wanted or any(_mentions(part, wanted) for part in get_args(hint))

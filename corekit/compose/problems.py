"""From pydantic's errors to sentences: where, what is legal, what was given, what was probably meant. Knows types, not tables."""

from __future__ import annotations

import types
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from .errors import near, nearest

Path = tuple[str | int, ...]


class Hidden:
    """Stands in a sentence for a value that must not be shown."""

    def __repr__(self) -> str:
        return "a value that is not shown"


def sentences(
    error: ValidationError, model: type[BaseModel], place: Callable[[Path], str], hints: Mapping[str, str] | None = None, secret: Container[str | int] = ()
) -> list[str]:
    """One sentence per fault. `place` says where a path stands; `hints` says where a key that is not of this table lives; values of `secret` keys stay out."""
    found = []
    for fault in error.errors(include_url=False):
        path = _real(fault["loc"], model)
        if path and path[0] in secret:
            fault["input"] = Hidden()
        found.append(f"{place(path)}: {_sentence(fault, path, model, hints or {})}")
    return list(dict.fromkeys(found))


def shown(value: object) -> str:
    text = {True: "true", False: "false"}.get(value, repr(value)) if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def keys(model: type[BaseModel]) -> list[str]:
    """The legal keys of a table, by the names that TOML uses."""
    return [field.alias or name for name, field in model.model_fields.items()]


def field_of(model: type[BaseModel], key: str | int) -> FieldInfo | None:
    return next((field for name, field in model.model_fields.items() if key in (field.alias, name)), None)


def table_of(annotation: Any) -> type[BaseModel] | None:
    """The table type in an annotation, looking through lists and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((table for part in get_args(annotation) if (table := table_of(part)) is not None), None)


def _real(loc: Path, model: type[BaseModel]) -> Path:
    """loc without the parts that pydantic adds for members of a union."""
    path: list[str | int] = []
    at: type[BaseModel] | None = model
    for part in loc:
        if at is None and isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "bool", "none")):
            continue
        path.append(part)
        if at is not None and isinstance(part, str):
            field = field_of(at, part)
            at = table_of(field.annotation) if field is not None else None
    return tuple(path)


def _sentence(fault: Any, path: Path, model: type[BaseModel], hints: Mapping[str, str]) -> str:
    kind, given, key = fault["type"], fault["input"], path[-1] if path else ""
    table, field = _walk(model, path)
    if kind == "extra_forbidden":
        return _unknown(str(key), isinstance(given, dict) and len(path) == 1, keys(table) if table else (), hints)
    if kind == "missing":
        return "is missing"
    if kind == "not_there_yet":
        return f"{shown(given)}: {fault['msg']}"
    wanted = _wanted(field, isinstance(key, int)) if field is not None else fault["msg"]
    meant = near(given, get_args(field.annotation)) if field is not None and get_origin(field.annotation) is Literal and isinstance(given, str) else ""
    return f"must be {wanted}, got {shown(given)}.{meant}" if meant else f"must be {wanted}, got {shown(given)}"


def _wanted(field: FieldInfo, is_element: bool) -> str:
    if field.description:
        return field.description
    if is_element and (element := _element(field.annotation)) is not None:
        return expected(element)
    return expected(field.annotation, field.metadata)


def _element(annotation: Any) -> Any:
    """What the list in an annotation holds; None when there is no list."""
    if get_origin(annotation) in (tuple, list):
        return get_args(annotation)[0]
    return next((element for part in get_args(annotation) if (element := _element(part)) is not None), None)


def _unknown(key: str, is_table: bool, known: Iterable[str], hints: Mapping[str, str]) -> str:
    if not is_table and key in hints:
        return f"unknown key. It is {hints[key]}."
    meant = near(key, known)
    if not meant and not is_table and (name := nearest(key, hints)):
        meant = f" Did you mean {name!r}, which is {hints[name]}?"
    return f"unknown {'table' if is_table else 'key'}.{meant or ' Known: ' + ', '.join(known) + '.'}"


def _walk(model: type[BaseModel], path: Path) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The table that path's last key stands in, and that key's field."""
    table: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            continue
        if field is not None:
            table = table_of(field.annotation)
        if table is None:
            return None, field
        found = field_of(table, part)
        if found is None:
            return table, None
        field = found
    return table, field


def expected(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a value must be, in words, bounds included."""
    metadata = list(metadata)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(repr(value) for value in args)
    if origin in (Union, types.UnionType):
        return " or ".join(expected(part, metadata) for part in args if part is not type(None))
    if origin is not None and hasattr(annotation, "__metadata__"):
        return expected(args[0], [*metadata, *annotation.__metadata__])
    if annotation is bool:
        return "true or false"
    if annotation in (int, float):
        return ("an integer" if annotation is int else "a number") + _bounds(metadata)
    if annotation is str:
        return "a text" + _lengths(metadata)
    if origin in (tuple, list):
        return f"a list (each {expected(args[0])})" if args else "a list"
    if origin is dict or annotation is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "a table"
    return getattr(annotation, "__name__", str(annotation))


def _bounds(metadata: Iterable[Any]) -> str:
    limits = {name: value for item in metadata for name in ("ge", "gt", "le", "lt") if (value := getattr(item, name, None)) is not None}
    words = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
    if {"ge", "le"} <= limits.keys():
        return f" from {limits['ge']} to {limits['le']}"
    return "".join(f" {'and ' if at else ''}{words[name].format(value)}" for at, (name, value) in enumerate(limits.items()))


def _lengths(metadata: Iterable[Any]) -> str:
    limits = {name: value for item in metadata for name in ("min_length", "max_length") if (value := getattr(item, name, None)) is not None}
    return f" of {limits.get('min_length', 0)} to {limits['max_length']} characters" if "max_length" in limits else ""

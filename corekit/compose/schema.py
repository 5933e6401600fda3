"""The TOML file as a JSON schema, for editors and for the reference: keys, types, bounds, defaults, texts, and the parts that are installed.

Knows the tables and the catalog; nothing of what a part does. Options are bound as far as their types say; what a dataclass checks
besides is checked when the part is chosen.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic_core import PydanticUndefined, to_jsonable_python

from corekit.api import SLOTS, hookspecs

from .catalog import Candidate, Catalog
from .errors import ConfigError
from .field_texts import field_texts
from .options import field_types
from .problems import table_of
from .tables import Only, Tables

Json = dict[str, Any]
DRAFT = "http://json-schema.org/draft-07/schema#"
VARIABLE: Mapping[str, Any] = {"type": "string", "pattern": "^env:"}
"""`env:NAME` may stand for the value of any option."""
FULL_NAME: Mapping[str, Any] = {"type": "string", "pattern": "^[^:]+:[^:]+$"}
"""`distribution:name`, which tells two providers of one name apart."""


def schema(catalog: Catalog) -> Json:
    """The whole file. Only what is in the catalog may be named."""
    slots = {slot.name: slot for slot in SLOTS}
    properties: Json = {}
    definitions: Json = {}
    for name, field in Tables.model_fields.items():
        table = table_of(field.annotation)
        if table is None:
            properties[name] = _property(field, "")
            continue
        found = _table(table)
        if (slot := slots.get(name)) is not None:
            found["description"] = inspect.getdoc(getattr(hookspecs, slot.hook)) or ""
            candidates = [candidate for candidate in catalog.candidates.get(name, ()) if not candidate.refused]
            definitions |= {f"{name}.{candidate.full_name}": _options(candidate) for candidate in candidates}
            names = (["auto"] if slot.chosen == "one" else []) + catalog.names(name)
            (_stack if slot.chosen == "stack" else _choice)(found, candidates, names)
        properties[name] = {"type": "array", "items": found, "default": _plain(field.default)} if get_origin(field.annotation) is tuple else found
    return {"$schema": DRAFT, "title": "corekit", **_closed(properties), "definitions": definitions}


def _closed(properties: Json) -> Json:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _table(table: type[BaseModel]) -> Json:
    texts = field_texts(table)
    found = _closed({field.alias or name: _property(field, texts.get(name, "")) for name, field in table.model_fields.items()})
    required = [field.alias or name for name, field in table.model_fields.items() if field.is_required()]
    return {**found, "required": required} if required else found


def _property(field: Any, text: str) -> Json:
    """One key of a table. A value that is known and not there yet is none that the schema allows."""
    found = _typed(Annotated[(field.annotation, *field.metadata)]) if field.metadata else _typed(field.annotation)
    for item in field.metadata:
        if isinstance(item, AfterValidator) and isinstance(item.func, Only):
            found |= {"maxItems": 0} if found.get("type") == "array" else {"enum": list(item.func.allowed)}
    found |= field.json_schema_extra or {}
    return found | _said(field.default, text)


def _typed(hint: Any) -> Json:
    """The schema of a type; open where it has none, or refers to others."""
    try:
        found = TypeAdapter(hint, config=None if table_of(hint) else ConfigDict(arbitrary_types_allowed=True)).json_schema()
    except (PydanticUserError, PydanticSchemaGenerationError, NotImplementedError):
        return {}
    if "$defs" in found:
        return {}
    not_null = [part for part in found.get("anyOf", ()) if part != {"type": "null"}]  # TOML has no null
    return dict(not_null[0]) if len(not_null) == 1 else {key: value for key, value in found.items() if key not in ("title", "description")}


def _said(default: Any, text: str) -> Json:
    found: Json = {} if default is PydanticUndefined or default is None else {"default": _plain(default)}
    return {**found, "description": text} if text else found


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return to_jsonable_python(value, fallback=str, bytes_mode="base64")  # a plugin's default may be anything


def _options(candidate: Candidate) -> Json:
    """The options table of one provider; whatever it declares that cannot be read is left open."""
    declared = candidate.provider.options
    if declared is None:
        return _closed({}) | {"description": f"{candidate.name} takes no options."}
    try:
        types = field_types(candidate, declared)
    except ConfigError:
        return {"type": "object"}
    texts, properties, required = field_texts(declared), {}, []
    for field in dataclasses.fields(declared):
        if field.name not in types:
            continue
        default = _default(field)
        if default is dataclasses.MISSING:
            required.append(field.name)
            default = None
        found = _typed(types[field.name])
        found = found if found.get("type") == "string" or not found else {"anyOf": [found, dict(VARIABLE)]}
        properties[field.name] = found | _said(default, texts.get(field.name, ""))
    return _closed(properties) | {"description": candidate.provider.summary} | ({"required": required} if required else {})


def _default(field: dataclasses.Field[Any]) -> Any:
    """MISSING: there is none. A factory is the plugin's code; one that fails costs its default alone."""
    if field.default_factory is dataclasses.MISSING:
        return field.default
    try:
        return field.default_factory()
    except Exception:
        return None


def _choice(table: Json, candidates: Collection[Candidate], names: list[str]) -> None:
    """Put the providers of a slot into its table: their names, and under which name which options are legal."""
    use, options = table["properties"]["use"], table["properties"]["options"]
    for candidate in candidates:
        named: Json = {"properties": {"use": {"enum": [candidate.name, candidate.full_name]}}}
        if candidate.name != use.get("default"):
            named["required"] = ["use"]
        table.setdefault("allOf", []).append({"if": named, "then": {"properties": {"options": _reference(candidate)}}})
    # The rules judge; the list of tables is what editors complete from, and its last member takes any.
    options["anyOf"] = [*map(_reference, candidates), {"type": "object"}]
    use["anyOf"] = [{"enum": names}, dict(FULL_NAME)]


def _stack(table: Json, candidates: Collection[Candidate], names: list[str]) -> None:
    """Put the layers into the allocator's table: their names, and the options of each."""
    layers = {name: _reference(candidate) for candidate in candidates for name in (candidate.name, candidate.full_name)}
    table["properties"]["stack"] |= {"items": {"anyOf": [{"enum": names}, dict(FULL_NAME)]}, "uniqueItems": True, "minItems": 1}
    table["properties"]["options"] |= {"properties": {name: layers[name] for name in sorted(layers)}, "additionalProperties": False}


def _reference(candidate: Candidate) -> Json:
    return {"$ref": f"#/definitions/{candidate.slot}.{candidate.full_name}"}

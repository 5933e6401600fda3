"""The JSON schema of the TOML file says what `load` and the parts' options say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from corekit.api import API_VERSION, Provider
from corekit.compose.catalog import Candidate, build_catalog
from corekit.compose.config import load
from corekit.compose.discovery import Discovery, Plugin, discover
from corekit.compose.errors import ConfigError
from corekit.compose.field_texts import field_texts
from corekit.compose.schema import schema
from corekit.compose.tables import AllocatorTable, SamplerTable, Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class LifoOptions:
    key: str = field(metadata={"secret": True})
    """What nobody
    may see."""
    patience: float = 10.0
    names: tuple[str, ...] = field(default_factory=lambda: ("a",))
    hidden: int = field(default=3, init=False)
    odd: object = None


def candidate(name: str, slot: str = "scheduler_policy", options: type | None = None, **more: Any) -> Candidate:
    provider: Provider[Any] = Provider(name=name, api=API_VERSION, summary="a summary", build=lambda c, o: None, options=options)
    return Candidate(slot=slot, provider=provider, plugin=Plugin(distribution="corekit-lifo", version="1", entry="e", module="m"), **more)


LIFO = candidate("lifo", options=LifoOptions)
WRITTEN = schema(build_catalog(discover(imports=["corekit_openai_http"]), [LIFO, candidate("old", refused="too old")]))
POLICY = WRITTEN["properties"]["scheduler_policy"]


@pytest.fixture(scope="module")
def faults() -> Any:
    """(tables) -> what the schema has against them, by an implementation that is not ours."""
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(WRITTEN)
    validator = jsonschema.Draft7Validator(WRITTEN)
    return lambda tables: [fault.message for fault in validator.iter_errors(tables)]


def loads(tables: Mapping[str, Any]) -> bool:
    try:
        load(given=tables)
    except ConfigError:
        return False
    return True


def test_every_key_is_there_with_default_and_text() -> None:
    assert set(WRITTEN["properties"]) == set(Tables.model_fields)
    for name, table in WRITTEN["properties"].items():
        for key, found in table.get("items", table).get("properties", {}).items():
            assert found["description"], f"[{name}] {key} has no text beneath it in tables.py"
            assert "default" in found or (name, key) == ("block_allocator", "stack") or key in table["items"]["required"]


def test_texts_are_read_beneath_the_fields_inherited_ones_too() -> None:
    assert field_texts(LifoOptions) == {"key": "What nobody may see."}
    assert field_texts(SamplerTable)["use"].startswith("The provider.")
    assert "\n" not in field_texts(AllocatorTable)["memory_utilization"]
    assert field_texts(type("Nowhere", (), {"__annotations__": {"x": int}})) == {}


def test_options_are_bound_as_far_as_their_types_say() -> None:
    options = WRITTEN["definitions"]["scheduler_policy.corekit-lifo:lifo"]
    assert options["required"] == ["key"]
    assert options["properties"]["key"] == {"type": "string", "description": "What nobody may see."}
    assert options["properties"]["names"]["default"] == ["a"]
    assert set(options["properties"]) == {"key", "patience", "names", "odd"}


def test_the_parts_that_can_be_used_are_named() -> None:
    assert POLICY["properties"]["use"]["anyOf"][0]["enum"][0] == "auto"
    assert {"fcfs", "lifo"} <= set(POLICY["properties"]["use"]["anyOf"][0]["enum"])
    assert "old" not in POLICY["properties"]["use"]["anyOf"][0]["enum"]
    assert "auto" not in WRITTEN["properties"]["frontend"]["items"]["properties"]["use"]["anyOf"][0]["enum"]
    assert schema(build_catalog(Discovery(providers=(), failures=())))["properties"]["sampler"]["properties"]["use"]["anyOf"][0]["enum"] == ["auto"]


GOOD: tuple[dict[str, Any], ...] = (
    {},
    {"model": {"source": "none", "max_model_len": "4k"}},
    {"scheduler_policy": {"use": "corekit-lifo:lifo", "options": {"key": "env:KEY", "patience": "env:PATIENCE", "names": []}}},
    {"block_allocator": {"stack": ["free-list"], "options": {"free-list": {}}}},
    {"attention_backend": {"use": "torch", "options": {"poison": True}}},
    {"frontend": [], "observer": []},
    {"frontend": [{"use": "openai-http", "options": {"port": 0, "api_keys": ["env:KEY"]}}]},
    {"plugins": {"import": ["mine"], "require": ["corekit-lifo>=0.1"]}},
)
BAD: tuple[dict[str, Any], ...] = (
    {"scheduller": {}},
    {"scheduler": {"max_num_seq": 1}},
    {"model": {"max_model_len": "4m"}},
    {"model": {"source": None}},
    {"engine": {"device": "tpu"}},
    {"scheduler": {"preemption": "never"}},
    {"executor": {"tensor_parallel_size": 2}},
    {"http_route": [{}]},
    {"frontend": [{"options": {}}]},
)
BAD_PARTS: tuple[dict[str, Any], ...] = (
    {"scheduler_policy": {"use": "lofi"}},
    {"scheduler_policy": {"use": "lifo", "options": {}}},
    {"scheduler_policy": {"use": "lifo", "options": {"key": "k", "patiense": 1.0}}},
    {"scheduler_policy": {"use": "lifo", "options": {"key": "k", "patience": "long"}}},
    {"scheduler_policy": {"options": {"key": "fcfs is the default and takes no options"}}},
    {"block_allocator": {"stack": ["free-list", "free-list"]}},
    {"block_allocator": {"options": {"lru": {}}}},
)


@pytest.mark.parametrize("tables", GOOD, ids=str)
def test_what_is_legal_fits(faults: Any, tables: dict[str, Any]) -> None:
    assert loads(tables)
    assert faults(tables) == []


@pytest.mark.parametrize("tables", BAD, ids=str)
def test_what_is_not_does_not(faults: Any, tables: dict[str, Any]) -> None:
    assert not loads(tables)
    assert faults(tables)


@pytest.mark.parametrize("tables", BAD_PARTS, ids=str)
def test_wrong_parts_and_options_are_seen(faults: Any, tables: dict[str, Any]) -> None:
    assert faults(tables)


def edges() -> Iterator[tuple[str, str, Any]]:
    """Every number at its bounds and just outside, every word of a choice and one that is none."""
    for name, table in WRITTEN["properties"].items():
        for key, found in table.get("properties", {}).items():
            for bound, sign in (("minimum", -1), ("maximum", 1)):
                if bound in found:
                    yield from ((name, key, found[bound]), (name, key, found[bound] + sign))
            yield from ((name, key, value) for value in found.get("enum", ()))
            yield from ((name, key, value) for value in ("no such word", True, [1], -1, 0.5, {}))


def test_schema_and_tables_agree_at_every_edge(faults: Any) -> None:
    compared = list(edges())
    assert len(compared) > 150
    for name, key, value in compared:
        tables = {name: {key: value}}
        if key not in ("use", "options"):  # which names there are, the tables do not know
            assert loads(tables) == (faults(tables) == []), tables

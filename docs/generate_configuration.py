"""Writes the generated parts of configuration.md: every table and option with type, bounds, default and meaning.

What it knows comes from `corekit config schema`, of corekit's own parts alone. The prose around the marks is written by hand.

    python docs/generate_configuration.py
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from corekit.compose.catalog import Catalog, build_catalog
from corekit.compose.discovery import discover
from corekit.compose.schema import FULL_NAME, VARIABLE, schema

PAGE = Path(__file__).with_name("configuration.md")
MARKED = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def bundled() -> Catalog:
    """Corekit's own parts, whatever else is installed."""
    project = tomllib.loads((PAGE.parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
    modules = tuple(project["entry-points"]["corekit"].values())
    catalog = build_catalog(discover(imports=modules))
    return replace(catalog, candidates={slot: tuple(c for c in found if c.plugin.module in modules) for slot, found in catalog.candidates.items()})


def generated(page: str) -> str:
    """The page with its marked parts written anew."""
    catalog = bundled()
    tables = schema(catalog)
    return MARKED.sub(lambda found: f"{found[1]}\n{''.join(section(found[2], tables, catalog))}{found[3]}", page)


def section(name: str, tables: Mapping[str, Any], catalog: Catalog) -> Iterator[str]:
    table = tables["properties"][name]
    yield from rows(table.get("items", table))
    candidates = catalog.candidates.get(name, ())
    if candidates:
        yield "| Provider | What it is |\n|---|---|\n"
        yield from (f"| `{candidate.name}` | {cell(candidate.provider.summary)} |\n" for candidate in sorted(candidates, key=lambda c: c.name))
        yield "\n"
    for candidate in sorted(candidates, key=lambda c: c.name):
        if candidate.provider.options is not None:
            yield f"Options of `{candidate.name}`:\n\n"
            yield from rows(tables["definitions"][f"{name}.{candidate.full_name}"])


def rows(table: Mapping[str, Any]) -> Iterator[str]:
    yield "| Key | Default | Type | Meaning |\n|---|---|---|---|\n"
    for key, found in table["properties"].items():
        default = "required" if key in table.get("required", ()) else f"`{json.dumps(found['default'])}`" if "default" in found else "not set"
        yield f"| `{key}` | {default} | {kind(found)} | {cell(found.get('description', ''))} |\n"
    yield "\n"


def kind(found: Mapping[str, Any]) -> str:
    """Type and bounds in words."""
    several = [part for part in found.get("anyOf", ()) if part != VARIABLE]
    if FULL_NAME in several:
        return "name of a provider"
    if "enum" in found:
        values = [f"`{json.dumps(value)}`" for value in found["enum"]]
        return "one of " + ", ".join(values) if len(values) > 1 else f"only {values[0]}"
    if several and found.get("type") not in ("object", "string"):
        return " or ".join(dict.fromkeys(kind(part) for part in several))
    of = found.get("type", "any")
    if isinstance(of, list):
        return " or ".join(kind({**found, "type": one}) for one in of)
    if of in ("integer", "number"):
        least, most = found.get("minimum"), found.get("maximum")
        return f"{of}, {least} to {most}" if None not in (least, most) else of
    if of == "array":
        return "empty list" if found.get("maxItems") == 0 else f"list ({kind(found.get('items', {}))} each)"
    return {"boolean": "boolean", "string": "text", "object": "table"}.get(of, of)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text("utf-8")), "utf-8")

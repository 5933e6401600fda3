"""Writes the parts of the pages that stand between `<!-- generated: ... -->` and `<!-- end -->`; the prose around them is written by hand.

    python docs/generate.py

`table NAME`: a table of the configuration, with its parts and their options, as `corekit config schema` has them of corekit's own parts.
`file PATH`: a file of this repository, as a code block. `laws KIT`: the laws of a kit of `corekit.testing`. `kits all`: all kits.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from corekit import testing
from corekit.api import SLOTS
from corekit.compose.catalog import Catalog, build_catalog
from corekit.compose.discovery import discover
from corekit.compose.schema import FULL_NAME, VARIABLE, schema

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
MARKED = re.compile(r"(<!-- generated: (\w+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
LANGUAGES: Mapping[str, str] = {".py": "python", ".toml": "toml"}


def generated(page: str) -> str:
    """The page with its marked parts written anew."""
    kinds = {"table": config_table, "file": file_block, "laws": laws, "kits": kits}
    return MARKED.sub(lambda found: f"{found[1]}\n{''.join(kinds[found[2]](found[3]))}\n{found[4]}", page)


# Files


def file_block(path: str) -> Iterator[str]:
    yield f"```{LANGUAGES[Path(path).suffix]}\n{(ROOT / path).read_text('utf-8').rstrip()}\n```\n"


# Laws


def laws(kit: str) -> Iterator[str]:
    """Every law, by what its docstring says. Those that all kits share come last."""
    found = getattr(testing, kit)
    yield "| Law | Says |\n|---|---|\n"
    names = [name for name in dir(found) if name.startswith("test_")]
    for name in sorted(names, key=lambda name: (hasattr(testing.Kit, name), *_place(found, name))):
        yield f"| `{name}` | {cell(' '.join((inspect.getdoc(getattr(found, name)) or '').split()))} |\n"


def _place(kit: type, name: str) -> tuple[int, int]:
    """Where a law stands in the source: the kit's own before those of the classes that it is made of."""
    owner = next(index for index, cls in enumerate(kit.__mro__) if name in vars(cls))
    return owner, inspect.unwrap(getattr(kit, name)).__code__.co_firstlineno


def kits(_: str) -> Iterator[str]:
    """Each slot's kit, and what its subclasses may declare besides the provider and its options."""
    yield "| Slot | Kit | Laws | May be declared |\n|---|---|---|---|\n"
    for slot in SLOTS:
        name = slot.protocol.__name__ + "Kit"
        if name not in testing.__all__:
            continue
        kit = getattr(testing, name)
        num_laws = sum(law.startswith("test_") for law in dir(kit))
        declared = {key: None for cls in kit.__mro__ for key, hint in vars(cls).get("__annotations__", {}).items() if "ClassVar" in str(hint)}
        shown = ", ".join(f"`{key}`" for key in declared if key not in vars(testing.Kit).get("__annotations__", {}) and not key.startswith("_"))
        yield f"| [{slot.name}](slots/{slot.name}.md) | `{name}` | {num_laws} | {shown or '-'} |\n"


# Configuration


@cache
def bundled() -> Catalog:
    """Corekit's own parts, whatever else is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    modules = tuple(project["entry-points"]["corekit"].values())
    catalog = build_catalog(discover(imports=modules))
    return replace(catalog, candidates={slot: tuple(c for c in found if c.plugin.module in modules) for slot, found in catalog.candidates.items()})


@cache
def tables() -> Mapping[str, Any]:
    return schema(bundled())


def config_table(name: str) -> Iterator[str]:
    table = tables()["properties"][name]
    yield from rows(table.get("items", table))
    candidates = sorted(bundled().candidates.get(name, ()), key=lambda candidate: candidate.name)
    if candidates:
        yield "\n| Provider | What it is |\n|---|---|\n"
        yield from (f"| `{candidate.name}` | {cell(candidate.provider.summary)} |\n" for candidate in candidates)
    for candidate in candidates:
        if candidate.provider.options is not None:
            yield f"\nOptions of `{candidate.name}`:\n\n"
            yield from rows(tables()["definitions"][f"{name}.{candidate.full_name}"])


def rows(table: Mapping[str, Any]) -> Iterator[str]:
    yield "| Key | Default | Type | Meaning |\n|---|---|---|---|\n"
    for key, found in table["properties"].items():
        default = "required" if key in table.get("required", ()) else f"`{json.dumps(found['default'])}`" if "default" in found else "not set"
        yield f"| `{key}` | {default} | {kind(found)} | {cell(found.get('description', ''))} |\n"


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
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text("utf-8")
        if (after := generated(before)) != before:
            page.write_text(after, "utf-8")

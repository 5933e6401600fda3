"""Every hook has a page with the same sections, a folder of tests, and is called; the map names files that are there."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from page_files import DOCS, files, write

from corekit import testing
from corekit.api import API_VERSION, SLOTS, Provider, Slot, hookimpl
from corekit.compose.catalog import build_catalog
from corekit.compose.discovery import discover

ROOT = DOCS.parent
SECTIONS = ["Contract", "Invariants", "Smallest example", "Kit"]
CONTRACT_ONLY = ("tool_format",)


def ids(slot: Slot) -> str:
    return slot.name


def page(slot: Slot) -> str:
    return (DOCS / "slots" / f"{slot.name}.md").read_text("utf-8")


def test_the_index_lists_every_slot_as_the_contract_has_it() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(slots/(\w+)\.md\) \| ([\w ]+) \| ([\w, ]+) \|", (DOCS / "index.md").read_text("utf-8"), re.MULTILINE)
    chosen = {"one": "one", "stack": "a stack", "many": "any number"}
    firm = {slot.name: ("stable" if slot.stable else "provisional") + ", contract only" * (slot.name in CONTRACT_ONLY) for slot in SLOTS}
    assert sorted(rows) == sorted((slot.name, slot.name, chosen[slot.chosen], firm[slot.name]) for slot in SLOTS)


@pytest.mark.parametrize("slot", SLOTS, ids=ids)
def test_every_slots_page_has_the_same_sections(slot: Slot) -> None:
    text = page(slot)
    assert [heading for heading in re.findall(r"^## (.*)$", text, re.MULTILINE) if heading in SECTIONS] == SECTIONS
    facts = re.findall(r"^\| (\w+) \|", text.partition("\n## ")[0], re.MULTILINE)
    assert facts[:5] == ["Contract", "Hook", "TOML", "Chosen", "Status"]


@pytest.mark.parametrize("slot", [slot for slot in SLOTS if slot.name not in CONTRACT_ONLY], ids=ids)
def test_the_page_shows_the_kit_and_its_laws(slot: Slot) -> None:
    kit = f"{slot.protocol.__name__}Kit"
    section = page(slot).partition("\n## Kit\n")[2]
    assert kit in testing.__all__
    assert re.search(rf"^class Test\w+\({kit}\):$", section, re.MULTILINE), "no test file of an author"
    assert f"<!-- generated: laws {kit} -->" in section


@pytest.mark.slow
@pytest.mark.parametrize("slot", [slot for slot in SLOTS if slot.name not in CONTRACT_ONLY], ids=ids)
def test_the_smallest_example_keeps_every_law_of_its_kit(slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the page, as a reader would leave them: the example, and the test file that the page shows."""
    shown = files(f"slots/{slot.name}.md")
    write(f"slots/{slot.name}.md", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (test,) = (Path(name).stem for name in shown if name.startswith("test_"))
    try:
        (kit,) = (thing for name, thing in vars(import_module(test)).items() if name.startswith("Test"))
        for law in (name for name in dir(kit) if name.startswith("test_")):
            with suppress(pytest.skip.Exception):
                getattr(kit(), law)()
    finally:
        for name in shown:
            if name.endswith(".py"):
                sys.modules.pop(Path(name).stem, None)


@pytest.mark.parametrize("slot", [slot for slot in SLOTS if slot.name in CONTRACT_ONLY], ids=ids)
def test_a_page_without_a_kit_says_so(slot: Slot) -> None:
    assert "none yet" in page(slot).partition("\n## Kit\n")[2]
    assert f"{slot.protocol.__name__}Kit" not in testing.__all__


@pytest.mark.parametrize("slot", SLOTS, ids=ids)
def test_every_slot_has_its_own_tests(slot: Slot) -> None:
    """A folder of its name with its kit on our own parts; what is contract only is tried by its page's example, in tests/api."""
    there = {path.name for path in (ROOT / "tests" / slot.name).glob("test_*.py")}
    assert slot.name in CONTRACT_ONLY or f"test_{slot.name}_kit.py" in there


def test_every_hook_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin with all hooks registers a provider in every slot."""
    module = ModuleType("all_hooks")
    for slot in SLOTS:
        provider: Provider[Any] = Provider(name=f"mine-{slot.name.replace('_', '-')}", api=API_VERSION, summary="a part", build=lambda context, options: None)
        exec(f"def {slot.hook}(): return [provider]", (names := {"provider": provider}))
        setattr(module, slot.hook, hookimpl(names[slot.hook]))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    catalog = build_catalog(discover(imports=[module.__name__]))
    for slot in SLOTS:
        assert f"mine-{slot.name.replace('_', '-')}" in catalog.names(slot.name)


def test_the_map_names_files_that_are_there() -> None:
    text = (DOCS / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"\b(api|compose|engine|worker|weights|builtin|cli)/(\w+)\b", text))
    assert len(named) > 15
    assert [f"{room}/{file}" for room, file in named if not (ROOT / "corekit" / room / f"{file}.py").is_file()] == []
    rooms = {path.name for path in (ROOT / "corekit").iterdir() if (path / "__init__.py").is_file()}
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", text.partition("| Room |")[2].partition("\n\n")[0], re.MULTILINE))))
    assert rooms - listed == set()


def test_pages_are_where_the_site_expects_them() -> None:
    """The site's contents name every page; what is in none of them, Sphinx would report."""
    contents = Path(DOCS / "conf.py").read_text("utf-8")
    for path in DOCS.rglob("*.md"):
        name = path.relative_to(DOCS).with_suffix("").as_posix()
        assert f'"{name}"' in contents or re.match(r"adr/\d", name), name

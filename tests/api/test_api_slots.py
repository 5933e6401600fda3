"""One word per part: the slot's name is a file of the contract, a hook, a docs page and a TOML table, all alike."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from corekit import api
from corekit.api import GROUP, SLOTS, BuildContext, Provider, Slot, hookimpl, hookspecs, never

ROOT = Path(__file__).resolve().parents[2]
HOOKS = [name for name in vars(hookspecs) if name.startswith("corekit_register_")]


def ids(slot: Slot) -> str:
    return slot.name


def plural(name: str) -> str:
    return re.sub("y$", "ie", name) + "s"


def test_slots_and_hooks_are_the_same_set() -> None:
    assert sorted(slot.hook for slot in SLOTS) == sorted(HOOKS)
    assert len({slot.name for slot in SLOTS}) == len(SLOTS) == 12


@pytest.mark.parametrize("slot", SLOTS, ids=ids)
def test_the_hook_is_named_in_full_and_returns_providers_of_the_protocol(slot: Slot) -> None:
    assert slot.hook == f"corekit_register_{plural(slot.name)}"
    signature = inspect.signature(getattr(hookspecs, slot.hook))
    assert not signature.parameters
    assert signature.return_annotation == f"Sequence[Provider[{slot.protocol.__name__}]]"
    assert getattr(hookspecs, slot.hook).corekit_spec["firstresult"] is False
    assert inspect.getdoc(getattr(hookspecs, slot.hook))


@pytest.mark.parametrize("slot", SLOTS, ids=ids)
def test_the_protocol_lives_in_the_file_of_its_slot(slot: Slot) -> None:
    assert slot.protocol.__module__ == f"corekit.api.{slot.name}"
    assert slot.protocol.__name__ == "".join(word.capitalize() for word in slot.name.split("_"))
    assert slot.protocol.__name__ in api.__all__


@pytest.mark.parametrize("slot", SLOTS, ids=ids)
def test_the_file_says_how_firm_it_is_and_how_many_are_chosen(slot: Slot) -> None:
    first = (inspect.getdoc(inspect.getmodule(slot.protocol)) or "").splitlines()[0]
    chosen = {"one": "one", "many": "any number", "stack": "a stack"}[slot.chosen]
    assert first.startswith(f"Slot `{slot.name}` ({'stable' if slot.stable else 'provisional'}, {chosen}")


@pytest.mark.parametrize("slot", SLOTS, ids=ids)
def test_the_slot_has_a_docs_page(slot: Slot) -> None:
    page = (ROOT / "docs" / "slots" / f"{slot.name}.md").read_text("utf-8")
    assert page.startswith(f"# {slot.name}\n")
    for word in (slot.hook, slot.protocol.__name__, "stable" if slot.stable else "provisional", f"corekit/api/{slot.name}.py"):
        assert word in page, f"the page does not say {word}"
    module = inspect.getmodule(slot.protocol)
    optional = [name for name, thing in vars(module).items() if name.startswith("Supports") and thing.__module__ == module.__name__]
    assert [name for name in optional if f"`{name}" not in page] == [], "optional Protocols that the page does not mention"
    public = [n for n, member in vars(slot.protocol).items() if not n.startswith("_") and (isinstance(member, property) or inspect.isfunction(member))]
    assert public
    assert [name for name in public if f"`{name}" not in page] == [], "members that the page does not mention"


@pytest.mark.parametrize("slot", SLOTS, ids=ids)
def test_the_smallest_example_has_every_member_of_the_contract(slot: Slot) -> None:
    """The example runs, and some class in it has what the Protocol asks for, with parameters of the same names."""
    page = (ROOT / "docs" / "slots" / f"{slot.name}.md").read_text("utf-8")
    (block, *_) = re.findall(r"```python\n(.*?)```", page.partition("\n## Smallest example\n")[2], re.DOTALL)
    example: dict[str, object] = {}
    exec(compile(block, f"{slot.name}.md", "exec"), example)
    wanted = {name: member for name, member in vars(slot.protocol).items() if not name.startswith("_") and callable(member)}
    classes = [thing for thing in example.values() if inspect.isclass(thing) and thing.__module__ == "builtins" and wanted.keys() <= vars(thing).keys()]
    assert classes, f"no class has {sorted(wanted)}"
    for name, member in wanted.items():
        assert list(inspect.signature(vars(classes[-1])[name]).parameters) == list(inspect.signature(member).parameters)


def test_every_docs_page_is_a_slot() -> None:
    assert {path.stem for path in (ROOT / "docs" / "slots").glob("*.md")} == {slot.name for slot in SLOTS}


def test_every_file_of_the_contract_is_a_slot_or_a_known_part() -> None:
    files = {path.stem for path in (ROOT / "corekit" / "api").glob("*.py")}
    assert files - {slot.name for slot in SLOTS} == {"__init__", "errors", "hookspecs", "ordering", "provider", "slots", "thread_pool", "types"}


def test_the_public_names_are_all_there_and_sorted_sensibly() -> None:
    assert len(set(api.__all__)) == len(api.__all__)
    assert all(hasattr(api, name) for name in api.__all__)


def test_the_group_of_the_markers_is_the_entry_point_group() -> None:
    assert hookimpl.project_name == hookspecs.hookspec.project_name == GROUP == "corekit"


def test_a_provider_says_its_contract_version() -> None:
    with pytest.raises(TypeError, match="api"):
        Provider(name="x", summary="", build=lambda context, options: None)  # type: ignore[call-arg]
    provider: Provider[object] = Provider(name="x", api=1, summary="", build=lambda context, options: object())
    assert provider.refuse is never
    assert list(provider.refuse(BuildContext())) == []

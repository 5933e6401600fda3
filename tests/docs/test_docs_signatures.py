"""Every signature that a page shows is the one of the contract: names of parameters, what is passed by name only, and defaults.

In the first column of a table it is written in full; in a sentence, what has a default may be left out.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from corekit import api
from corekit.api import SLOTS, Slot, hookspecs

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CALL = re.compile(r"`((?:\w+\.)*(\w+)\(([^`()]*(?:\([^`()]*\)[^`()]*)*)\))`")
"""A call in a code span: the whole, its last name, what stands in the brackets."""


def ids(slot: Slot) -> str:
    return slot.name


def shape(function: object) -> list[tuple[str, str, str]]:
    """(name, how it is passed, default) of each parameter but self."""
    parameters = list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    parameters = parameters[1:] if parameters and parameters[0].name == "self" else parameters
    return [(p.name, "name" if p.kind is p.KEYWORD_ONLY else p.kind.name, "" if p.default is p.empty else repr(p.default)) for p in parameters]


def shown(inside: str) -> list[tuple[str, str, str]] | None:
    """The same, of what a page shows; None when it is a call with values and no signature."""
    try:
        tree = ast.parse(f"def f({inside}): ...")
    except SyntaxError:
        return None
    function: dict[str, object] = {}
    exec(compile(tree, "page", "exec"), function)
    return shape(function["f"])


def members(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Methods of the Protocols of a module, and what else in it can be called by that name."""
    for thing in vars(module).values():
        if inspect.isclass(thing) and thing.__module__ == module.__name__ and getattr(thing, "_is_protocol", False):
            yield from ((name, member) for name, member in vars(thing).items() if inspect.isfunction(member) and not name.startswith("_"))
        elif inspect.isfunction(thing) and thing.__module__ == module.__name__:
            yield thing.__name__, thing


def calls(text: str) -> Iterator[tuple[str, str, list[tuple[str, str, str]], bool]]:
    """(as written, its name, its shape, whether it stands in the first column of a table)."""
    for line in re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines():
        for match in CALL.finditer(line):
            whole, name, inside = match.groups()
            if (found := shown(inside)) is not None:
                yield whole, name, found, line.startswith("|") and "|" not in line[1 : match.start()]


def fits(found: list[tuple[str, str, str]], wanted: list[tuple[str, str, str]], *, whole: bool) -> bool:
    return found == wanted or (not whole and found == wanted[: len(found)] and all(default for _, _, default in wanted[len(found) :]))


@pytest.mark.parametrize("slot", SLOTS, ids=ids)
def test_the_signatures_of_a_slots_page(slot: Slot) -> None:
    """Whatever the page calls by the name of a method of its slot is written as the contract has it, and every method is."""
    module = inspect.getmodule(slot.protocol)
    assert module is not None
    wanted = dict(members(module))
    text = (DOCS / "slots" / f"{slot.name}.md").read_text("utf-8")
    written: set[str] = set()
    for said, name, found, whole in calls(text):
        if name in wanted:
            assert fits(found, shape(wanted[name]), whole=whole), f"`{said}`: the contract has {name}{inspect.signature(wanted[name])}"  # type: ignore[arg-type]
            written.add(name)
    own = {name for name, member in vars(slot.protocol).items() if inspect.isfunction(member) and not name.startswith("_")}
    assert own <= written, "methods whose signature the page does not show"


@pytest.mark.parametrize("path", [path for path in PAGES if path.parent.name != "slots"], ids=lambda path: path.name)
def test_the_signatures_of_other_pages(path: Path) -> None:
    """`Class.method(...)` of the contract, and its functions, are written as the contract has them."""
    for said, name, found, whole in calls(path.read_text("utf-8")):
        owner = getattr(api, said.split(".")[0], None) if "." in said.partition("(")[0] else None
        member = getattr(owner, name, None) if owner is not None else getattr(hookspecs, name, getattr(api, name, None))
        if inspect.isfunction(member):
            assert fits(found, shape(member), whole=whole), f"`{said}`: the contract has {inspect.signature(member)}"


def test_a_wrong_signature_is_seen() -> None:
    assert shown("a, *, b=None") == [("a", "POSITIONAL_OR_KEYWORD", ""), ("b", "name", "None")]
    assert shown("[1, 2]") is None
    assert list(calls("`take(count)` and ```\n`no(code)`\n```")) == [("take(count)", "take", [("count", "POSITIONAL_OR_KEYWORD", "")], False)]
    assert [whole for *_, whole in calls("| `take(count)` | `find(query)` |")] == [True, False]
    assert shape(api.BlockAllocator.take) == shown("count") != shown("number")
    schedule = shape(api.StepPlan.schedule)
    assert fits(shown("request") or [], schedule, whole=False)
    assert not fits(shown("request") or [], schedule, whole=True)
    assert not fits(shown("") or [], schedule, whole=False)
    assert not fits(shown("request, max_tokens=1") or [], schedule, whole=False)

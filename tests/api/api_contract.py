"""The contract of corekit.api as lines of text, and the judgement of a change: does it break a plugin that exists?

Reads names, kinds, signatures, defaults and firmness; knows nothing of what any of them does.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import corekit.api
from corekit.api import SLOTS, hookspecs

SNAPSHOT = Path(__file__).with_name("contract.txt")

HEADER = """\
# The contract of corekit.api: every public name, its members, signatures and defaults, stable or provisional.
# Written by `python tests/api/write_snapshot.py`; read by tests/api. Change corekit/api first, then this, on purpose.
"""

FROM_THE_CORE = frozenset(
    {"StepPlan", "RequestView", "EngineClient", "CopyJournal", "WeightSource", "Worker", "Attend"},
)
"""Protocols that the core implements and plugins call: they may gain members. What plugins implement may not."""


class Entry(NamedTuple):
    firm: str
    """ "stable" or "provisional"."""
    kind: str
    head: str
    """What follows the name: bases, a signature, a value."""
    members: tuple[str, ...]


Contract = Mapping[str, Entry]


class Change(NamedTuple):
    text: str
    breaks: bool


def current() -> dict[str, Entry]:
    """The contract as the tree has it now."""
    homes = _homes()
    provisional = {slot.name for slot in SLOTS if not slot.stable}
    found = {}
    for name in sorted(corekit.api.__all__):
        firm = "provisional" if homes[name] in provisional else "stable"
        found[name] = entry(name, getattr(corekit.api, name), firm)
    for slot in SLOTS:
        firm = "stable" if slot.stable else "provisional"
        found[slot.hook] = Entry(firm, "hook", signature(getattr(hookspecs, slot.hook)), ())
    return found


def _homes() -> dict[str, str]:
    """Public name -> the file of corekit/api that defines it."""
    homes = {}
    for path in Path(corekit.api.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names = [node.name]
            homes.update(dict.fromkeys(names, path.stem))
    return homes


def entry(name: str, thing: Any, firm: str) -> Entry:
    if name == "SLOTS":
        return Entry(
            firm, "table", "", tuple(f"{s.name}: {s.chosen}, {'stable' if s.stable else 'provisional'}, {s.protocol.__name__}, {s.hook}" for s in thing)
        )
    if inspect.isfunction(thing):
        return Entry(firm, "function", signature(thing), ())
    if thing is Any or not inspect.isclass(thing):
        shown = repr(sorted(map(str, thing)) if isinstance(thing, frozenset) else thing)
        if name == "hookimpl":
            shown = f"{type(thing).__name__}({thing.project_name!r})"
        return Entry(firm, "value", f" = {shown}", ())
    if getattr(thing, "_is_protocol", False):
        kind = "optional protocol" if getattr(thing, "_is_runtime_protocol", False) else "protocol"
        return Entry(firm, kind, "", tuple(sorted(_members(thing))))
    if issubclass(thing, Enum):
        return Entry(firm, "enum", "", tuple(f"{member.name} = {member.value!r}" for member in thing))
    if is_dataclass(thing):
        keyword_only = all(field.kw_only for field in fields(thing))
        shown = tuple(f"{field.name}: {field.type}{_default(field.default, field.default_factory)}" for field in fields(thing))
        return Entry(firm, "keyword dataclass" if keyword_only else "dataclass", "", shown)
    if hasattr(thing, "_fields"):
        types, defaults = thing.__annotations__, thing._field_defaults
        return Entry(firm, "named tuple", "", tuple(f"{f}: {_annotation(types[f])}{_default(defaults.get(f, MISSING), MISSING)}" for f in thing._fields))
    bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object)
    own = tuple(sorted(_members(thing))) if not issubclass(thing, Exception) else ()
    init = signature(thing.__init__) if "__init__" in vars(thing) else ""
    return Entry(firm, "class", f"({bases}){init and ' ' + init}", own)


def _members(owner: type) -> Iterator[str]:
    for name, member in vars(owner).items():
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(member, property):
            yield f"{name}: {_annotation(inspect.signature(member.fget).return_annotation)}"  # type: ignore[arg-type]
        elif inspect.isfunction(member):
            yield f"{'async ' if inspect.iscoroutinefunction(member) else ''}{name}{signature(member)}"
        elif inspect.ismemberdescriptor(member):
            yield name


def signature(function: Callable[..., Any]) -> str:
    """Like str(inspect.signature(...)), with annotations as they are written in the source, whatever the Python version."""
    found = inspect.signature(function)
    parts: list[str] = []
    star = False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        noted = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
        parts.append(f"{prefix}{parameter.name}{noted}{_default(MISSING if parameter.default is parameter.empty else parameter.default, MISSING)}")
    return f"({', '.join(parts)}) -> {_annotation(found.return_annotation)}"


def _annotation(noted: Any) -> str:
    noted = getattr(noted, "__forward_arg__", noted)
    return noted if isinstance(noted, str) else inspect.formatannotation(noted)


def _default(value: Any, factory: Any) -> str:
    if factory is not MISSING:
        return f" = {factory.__qualname__}()"
    if value is MISSING:
        return ""
    return f" = {value.__module__}.{value.__qualname__}" if callable(value) else f" = {value!r}"


def to_text(contract: Contract) -> str:
    blocks = []
    for name, (firm, kind, head, members) in contract.items():
        blocks.append("\n".join([f"{firm} {kind} {name}{head}", *(f"    {member}" for member in members)]) + "\n")
    return HEADER + "\n" + "\n".join(blocks)


def judge(old: Contract, new: Contract) -> list[Change]:
    """Every change, and whether it breaks a plugin written against `old`. Provisional parts break no promise."""
    changes: list[Change] = []
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            changes.append(Change(f"{name} is gone", old[name].firm == "stable"))
        elif name not in old:
            changes.append(Change(f"{name} is new", False))
        else:
            changes.extend(_compare(name, old[name], new[name]))
    return changes


def _compare(name: str, old: Entry, new: Entry) -> Iterator[Change]:
    promised = old.firm == "stable"
    if old.firm != new.firm:
        yield Change(f"{name} was {old.firm}, is {new.firm}", promised)
    if (old.kind, old.head) != (new.kind, new.head):
        yield Change(f"{name} was {old.kind}{old.head}, is {new.kind}{new.head}", promised and name != "API_VERSION")
    for member in old.members:
        if member not in new.members:
            yield Change(f"{name} had {member!r}", promised)
    for member in new.members:
        if member not in old.members:
            required = "protocol" in new.kind and name not in FROM_THE_CORE
            without_default = new.kind in ("dataclass", "keyword dataclass", "named tuple") and " = " not in member
            yield Change(f"{name} gains {member!r}", promised and (required or without_default))
    kept_old, kept_new = ([m for m in one.members if m in other.members] for one, other in ((old, new), (new, old)))
    # A positional field may only be added at the end.
    moved = new.kind in ("dataclass", "named tuple") and (kept_old != kept_new or new.members[: len(kept_new)] != tuple(kept_new))
    if moved:
        yield Change(f"{name} has its fields in another order", promised)


def from_text(text: str) -> dict[str, Entry]:
    """The inverse of `to_text`."""
    found: dict[str, Entry] = {}
    for block in text.removeprefix(HEADER).strip("\n").split("\n\n"):
        first, *members = block.split("\n")
        firm, rest = first.split(" ", 1)
        kind = next(kind for kind in KINDS if rest.startswith(kind + " "))
        rest = rest[len(kind) + 1 :]
        name = rest[: next((at for at, char in enumerate(rest) if not (char.isalnum() or char == "_")), len(rest))]
        found[name] = Entry(firm, kind, rest[len(name) :], tuple(member.removeprefix("    ") for member in members))
    return found


KINDS = ("optional protocol", "protocol", "keyword dataclass", "dataclass", "named tuple", "enum", "class", "function", "hook", "value", "table")

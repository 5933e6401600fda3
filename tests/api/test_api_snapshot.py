"""The contract is what the snapshot says; and changes planted in a copy are judged right."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import pytest
from api_contract import KINDS, SNAPSHOT, Entry, current, entry, from_text, judge, to_text

HOW = """
corekit.api is not what tests/api/contract.txt says. If you meant to change the contract:
  1. python tests/api/write_snapshot.py
  2. if it refuses, the change breaks a stable part: raise API_VERSION in corekit/api/types.py, and say what a plugin author
     must do in docs/changelog.md
"""


def test_the_contract_is_the_snapshot() -> None:
    old, new = from_text(SNAPSHOT.read_text("utf-8")), current()
    changes = "\n".join(f"  {'BREAKS ' if change.breaks else ''}{change.text}" for change in judge(old, new))
    assert to_text(new) == SNAPSHOT.read_text("utf-8"), f"{changes}\n{HOW}"


def test_the_snapshot_reads_back() -> None:
    contract = current()
    assert from_text(to_text(contract)) == contract
    assert {part.kind for part in contract.values()} == set(KINDS)
    assert judge(contract, contract) == []


@runtime_checkable
class Optional(Protocol):
    def extra(self) -> None: ...


class Layer(Protocol):
    @property
    def available(self) -> int: ...
    def take(self, count: int, *, now: float = 0.0) -> Sequence[int] | None: ...
    def give(self, blocks: Sequence[int]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    first: int = 1
    second: str | None = None


@dataclass(frozen=True)
class Place:
    block: int
    on_host: bool = False


class Row(NamedTuple):
    id: int
    start: int = 0


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def free(count: int, /, *rest: int, size: float = 1.0, **more: object) -> Literal["a", "b"]:
    raise NotImplementedError


class _Contracts:
    """Namespaces of changed parts, named like the originals."""

    class LayerWithoutGive(Protocol):
        @property
        def available(self) -> int: ...
        def take(self, count: int, *, now: float = 0.0) -> Sequence[int] | None: ...

    class LayerWithMore(Layer, Protocol):
        @property
        def available(self) -> int: ...
        def take(self, count: int, *, now: float = 0.0) -> Sequence[int] | None: ...
        def give(self, blocks: Sequence[int]) -> None: ...
        def trim(self) -> None: ...

    class LayerWithAnotherDefault(Protocol):
        @property
        def available(self) -> int: ...
        def take(self, count: int, *, now: float = 1.0) -> Sequence[int] | None: ...
        def give(self, blocks: Sequence[int]) -> None: ...

    class LayerWithAnotherName(Protocol):
        @property
        def available(self) -> int: ...
        def take(self, num: int, *, now: float = 0.0) -> Sequence[int] | None: ...
        def give(self, blocks: Sequence[int]) -> None: ...

    class LayerWithMethodForProperty(Protocol):
        def available(self) -> int: ...
        def take(self, count: int, *, now: float = 0.0) -> Sequence[int] | None: ...
        def give(self, blocks: Sequence[int]) -> None: ...

    @dataclass(frozen=True, slots=True, kw_only=True)
    class OptionsWithAnotherDefault:
        first: int = 2
        second: str | None = None

    @dataclass(frozen=True, slots=True, kw_only=True)
    class OptionsWithAnotherType:
        first: float = 1
        second: str | None = None

    @dataclass(frozen=True, slots=True, kw_only=True)
    class OptionsWithRequired:
        first: int = 1
        second: str | None = None
        third: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class OptionsWithMore:
        first: int = 1
        zeroth: int = 0
        second: str | None = None

    @dataclass(frozen=True)
    class PlaceWithMore:
        block: int
        on_host: bool = False
        rank: int = 0

    @dataclass(frozen=True)
    class PlaceWithMoreBetween:
        block: int
        rank: int = 0
        on_host: bool = False

    class RowWithout(NamedTuple):
        id: int

    class RowSwapped(NamedTuple):
        start: int
        id: int

    class ColourWithout(Enum):
        RED = "red"

    class ColourWithMore(Enum):
        RED = "red"
        BLUE = "blue"
        GREEN = "green"

    def free(count: int, /, *rest: int, size: float = 2.0, **more: object) -> Literal["a", "b"]:  # noqa: N805
        raise NotImplementedError


@pytest.mark.parametrize(
    ("old", "new", "breaks"),
    [
        (Layer, _Contracts.LayerWithoutGive, True),
        (Layer, _Contracts.LayerWithMore, True),
        (Layer, _Contracts.LayerWithAnotherDefault, True),
        (Layer, _Contracts.LayerWithAnotherName, True),
        (Layer, _Contracts.LayerWithMethodForProperty, True),
        (Options, _Contracts.OptionsWithAnotherDefault, True),
        (Options, _Contracts.OptionsWithAnotherType, True),
        (Options, _Contracts.OptionsWithRequired, True),
        (Options, _Contracts.OptionsWithMore, False),
        (Place, _Contracts.PlaceWithMore, False),
        (Place, _Contracts.PlaceWithMoreBetween, True),
        (Row, _Contracts.RowWithout, True),
        (Row, _Contracts.RowSwapped, True),
        (Colour, _Contracts.ColourWithout, True),
        (Colour, _Contracts.ColourWithMore, False),
        (free, _Contracts.free, True),
        (Layer, Optional, True),
        (Options, Place, True),
    ],
)
def test_planted_changes_are_judged(old: object, new: object, breaks: bool) -> None:
    for firm in ("stable", "provisional"):
        changes = judge({"Part": entry("Part", old, firm)}, {"Part": entry("Part", new, firm)})
        assert changes, "the change was not seen"
        assert any(change.breaks for change in changes) is (breaks and firm == "stable")


def test_the_core_may_give_more_than_it_gave() -> None:
    old, new = entry("Layer", Layer, "stable"), entry("Layer", _Contracts.LayerWithMore, "stable")
    assert [change.breaks for change in judge({"StepPlan": old}, {"StepPlan": new})] == [False]
    assert [change.breaks for change in judge({"SchedulerPolicy": old}, {"SchedulerPolicy": new})] == [True]


def test_firmness_and_presence() -> None:
    stable, provisional = entry("Layer", Layer, "stable"), entry("Layer", Layer, "provisional")
    assert [change.breaks for change in judge({"Layer": stable}, {"Layer": provisional})] == [True]
    assert [change.breaks for change in judge({"Layer": provisional}, {"Layer": stable})] == [False]
    assert [change.breaks for change in judge({"Layer": stable}, {})] == [True]
    assert [change.breaks for change in judge({"Layer": provisional}, {})] == [False]
    assert [change.breaks for change in judge({}, {"Layer": stable})] == [False]


def test_signatures_are_written_as_in_the_source() -> None:
    assert entry("free", free, "stable").head == "(count: int, *rest: int, size: float = 1.0, **more: object) -> Literal['a', 'b']"
    assert entry("Layer", Layer, "stable").members == (
        "available: int",
        "give(self, blocks: Sequence[int]) -> None",
        "take(self, count: int, *, now: float = 0.0) -> Sequence[int] | None",
    )


def write(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of write_snapshot.py whose snapshot is `text`."""
    for name in ("api_contract.py", "write_snapshot.py"):
        (folder / name).write_text((SNAPSHOT.parent / name).read_text("utf-8"))
    (folder / "contract.txt").write_text(text)
    return subprocess.run([sys.executable, str(folder / "write_snapshot.py"), *arguments], capture_output=True, text=True, timeout=60)


def test_writing_refuses_to_break_plugins_of_the_same_version(tmp_path: Path) -> None:
    promised = current()
    old = promised | {"SamplingParams": promised["SamplingParams"]._replace(members=("gone: int = 3", *promised["SamplingParams"].members))}
    done = write(tmp_path, to_text(old))
    assert done.returncode == 1
    assert "raise it in corekit/api/types.py" in done.stderr
    assert "gone: int = 3" in done.stderr
    assert (tmp_path / "contract.txt").read_text() == to_text(old)

    older = old | {"API_VERSION": Entry("stable", "value", " = 0", ())}
    assert write(tmp_path, to_text(older)).returncode == 0, "a raised version may break"
    assert (tmp_path / "contract.txt").read_text() == to_text(promised)

    assert write(tmp_path, to_text(old), "--unreleased").returncode == 0
    additive = {name: part for name, part in promised.items() if name != "SupportsAudit"}
    assert write(tmp_path, to_text(additive)).returncode == 0

"""plugins, plugins new and plugins check: what they print, and how they end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_process import SCRIPTED, write
from click.testing import CliRunner, Result

import corekit.testing.check as check_of_kits
from corekit.cli import main

Invoke = Callable[..., Result]
MODULE = """
from collections.abc import Sequence
from dataclasses import dataclass

from corekit.api import API_VERSION, BuildContext, Provider, hookimpl


@dataclass(frozen=True)
class Options:
    limit: int = 3

    def __post_init__(self):
        if not 1 <= self.limit <= 9:
            raise ValueError("limit must be 1 to 9")


class Fine:
    def __init__(self, limit=3):
        self.limit = limit

    def on_step(self, stats):
        pass

    def on_request(self, stats):
        assert self.limit < 9, "nine is too many"


class Format:
    def start(self):
        return None


class Wrong(Fine):
    def on_step(self):
        pass


@hookimpl
def corekit_register_observers():
    return [
        Provider(name="fine", api=API_VERSION, summary="hears and forgets", build=lambda context, options: Fine(options.limit), options=Options),
        Provider(name="wrong", api=API_VERSION, summary="hears nothing at all", build=lambda context, options: Wrong()),
        Provider(name="torch", api=API_VERSION, summary="a name that others have", build=lambda context, options: Fine()),
        Provider(name="future", api=API_VERSION + 1, summary="from a later version", build=lambda context, options: Fine()),
        Provider(name="elsewhere", api=API_VERSION, summary="runs nowhere at all", build=lambda context, options: Fine(), refuse=lambda context: ["no GPU"]),
        Provider(name="raising", api=API_VERSION, summary="raises when it is built", build=lambda context, options: 1 / 0),
    ]


@hookimpl
def corekit_register_tool_formats():
    return [Provider(name="format", api=API_VERSION, summary="no format at all", build=lambda context, options: Format())]
"""
MINE = ("--import", "cli_local_parts")


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Invoke]:
    (tmp_path / "cli_local_parts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda *arguments: CliRunner().invoke(main, ["plugins", *arguments])
    sys.modules.pop("cli_local_parts", None)


@pytest.fixture
def listed(tmp_path: Path) -> str:
    return write(tmp_path, SCRIPTED.replace('["corekit_openai_http"]', '["corekit_openai_http", "cli_local_parts"]'))


def said(done: Result, code: int) -> str:
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.stderr if code else done.stdout


def test_the_bare_call_lists(invoke: Invoke, listed: str) -> None:
    assert said(invoke(), 0) == said(invoke("list"), 0)
    lines = said(invoke(listed), 0).splitlines()
    (future,) = (line for line in lines if " future " in line)
    assert "REFUSED: cli_local_parts (plugin '[plugins] import', module cli_local_parts) was written for version" in future
    (format,) = (line for line in lines if line.startswith("tool_format"))
    assert format.split()[:6] == ["tool_format", "format", "cli_local_parts", "-", "1", "provisional"]


def test_the_list_for_programs(invoke: Invoke, listed: str) -> None:
    found = json.loads(said(invoke("--json"), 0))
    assert [p["promise"] for p in found["providers"] if p["name"] == "fcfs"] == ["stable"]
    assert {p["refusals"] for p in found["providers"]} == {None}
    found = json.loads(said(invoke(listed, "--json", "--refusals", "--set", 'plugins.import=["corekit_openai_http","cli_local_parts","cli_nowhere"]'), 0))
    parts = {(p["slot"], p["name"]): p for p in found["providers"]}
    assert parts["observer", "elsewhere"]["refusals"] == ["no GPU"]
    assert parts["observer", "fine"]["refusals"] == []
    assert parts["tokenizer", "hf"]["refusals"] == ["the source has no tokenizer.json"]
    assert parts["observer", "future"]["refusals"] is None
    assert "written for version" in parts["observer", "future"]["refused"]
    (failure,) = found["failures"]
    assert (failure["module"], failure["hook"]) == ("cli_nowhere", None)
    assert "No module named 'cli_nowhere'" in failure["reason"]


def test_refusals_in_the_list(invoke: Invoke, listed: str) -> None:
    lines = said(invoke(listed, "--refusals"), 0).splitlines()
    assert next(line for line in lines if " elsewhere " in line).endswith("refuses: no GPU")
    assert next(line for line in lines if " bytes " in line).endswith("for models without a tokenizer")


def test_a_misspelt_verb(invoke: Invoke) -> None:
    assert "Did you mean 'check'?" in said(invoke("chekc", "lifo"), 2)


def test_new_says_what_comes_next(invoke: Invoke, tmp_path: Path) -> None:
    done = said(invoke("new", "corekit-late", "--slot", "scheduler_policy", "--into", str(tmp_path)), 0)
    folder = tmp_path / "corekit-late"
    assert f"pip install -e '{folder}[test]'" in done
    assert "corekit plugins check late\n" in done
    assert f"{folder}/corekit_late/part.py" in done
    again = said(invoke("new", "corekit-late", "--slot", "scheduler_policy", "--into", str(tmp_path)), 2)
    assert again == f"corekit: plugins new: {folder} is there already, and nothing is overwritten. Choose another name, or another folder with --into.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("corekit-fcfs", "--slot", "scheduler_policy"), "slot scheduler_policy has fcfs from corekit"),
        (("corekit-late", "--slot", "tool_format"), "there is no template for that slot"),
        (("Late", "--slot", "sampler"), "is no name for a package"),
        (("corekit-late",), "Missing option '--slot'"),
    ],
)
def test_new_refuses(invoke: Invoke, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in said(invoke("new", *arguments, "--into", str(tmp_path)), 2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["cli_local_parts.py"]


def test_check_tells_every_law(invoke: Invoke) -> None:
    done = said(invoke("check", "in-process"), 0)
    first, *laws, last = done.splitlines()
    assert first.startswith("in-process from corekit ")
    assert first.endswith(": executor, version 1 of the contract")
    assert laws.count("  holds   signatures fit the contract") == 1
    assert "  holds   any order that the contract allows gives the same" in laws
    assert last.startswith(f"{len(laws)} laws hold (")


def test_check_shows_what_is_broken(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken by an option, so that the same part is sound without it. The laws that need a whole engine are left out here: time."""
    kit = check_of_kits.kit_of("observer")
    monkeypatch.setattr(kit, "test_it_hears_a_whole_engine", None)
    assert " laws hold (" in said(invoke("check", "fine", *MINE), 0)
    done = invoke("check", "fine", *MINE, "--option", "limit=9")
    assert done.exit_code == 1
    assert "  BROKEN  any request is taken" in done.stdout
    assert "nothing raises." in done.stdout
    assert "nine is too many" in done.stdout
    assert "cli_local_parts.py:" in done.stdout, "where the part's own code raised it"
    assert done.stdout.endswith("\n--verbose shows tracebacks\n")
    assert " broken (" in done.stdout


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("wrong", 1, "wrong from cli_local_parts built a Wrong that does not fit the slot observer: on_step: it takes no parameter 'stats'"),
        ("elsewhere", 1, "elsewhere from cli_local_parts refuses the kit's context: no GPU"),
        ("raising", 1, "ZeroDivisionError: division by zero"),
        ("future", 3, "was written for version 2 of the contract; this corekit accepts 1"),
        ("fien", 3, "fien: no such provider. Did you mean 'fine'?"),
        ("nothing-like-it", 3, "`corekit plugins` lists those that are there"),
        ("torch", 2, "torch: 3 slots have a provider of that name. Say which: --slot attention_backend or --slot sampler or --slot observer."),
    ],
)
def test_parts_that_no_kit_can_run(invoke: Invoke, name: str, code: int, message: str) -> None:
    done = invoke("check", name, *MINE)
    assert done.exit_code == code, done.output
    assert message in done.output
    assert "holds" not in done.output
    assert "Traceback" not in done.output


def test_a_slot_without_a_kit(invoke: Invoke) -> None:
    done = said(invoke("check", "cli_local_parts:format", *MINE), 0)
    assert "  holds   signatures fit the contract\n  no kit  there are no laws for tool_format yet" in done


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("fine", *MINE, "--option", "limit=10"), 3, "--option: fine from cli_local_parts: limit must be 1 to 9"),
        (("fine", *MINE, "--option", "limit=x"), 3, "--option limit: must be an integer, got 'x'"),
        (("fine", *MINE, "--option", "limits=3"), 3, "--option limits: unknown key. Did you mean 'limit'?"),
        (("fine", *MINE, "--option", "limit"), 2, "--option limit: must be KEY=VALUE"),
        (("fine", *MINE, "--slot", "observers"), 2, "--slot observers: there is no such slot. Did you mean 'observer'?"),
        (("fine", *MINE, "--slot", "sampler"), 3, "--slot sampler: fine is no provider of that slot, but of observer"),
        (("fine", "--import", "cli_nowhere"), 3, "cli_nowhere"),
    ],
)
def test_arguments_of_check(invoke: Invoke, arguments: tuple[str, ...], code: int, message: str) -> None:
    assert message in said(invoke("check", *arguments), code)


def test_without_pytest_one_line_says_how_to_get_it(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_of_kits, "NEEDED", ("hypothesis", "pytest_that_is_not_there"))
    assert said(invoke("check", "fine", *MINE), 1) == 'corekit: plugins check needs pytest_that_is_not_there: pip install "corekit[testing]"\n'

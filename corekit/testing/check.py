"""Runs the kit of a provider without a test file of its own: what `corekit plugins check` does. Knows kits and pytest; prints nothing.

pytest runs a file of two lines that is written for it, so that a law fails here exactly as it fails in an author's own tests.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from corekit.compose.catalog import Candidate, build_catalog
from corekit.compose.discovery import discover

from . import __all__ as public
from .kit import Kit

if TYPE_CHECKING:
    import pytest

NEEDED = ("hypothesis", "pytest")
TEST_FILE = """from corekit.testing.check import subject

TestPart = subject({slot!r}, {name!r}, {options!r}, {imports!r})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one law."""

    law: str
    outcome: Literal["holds", "broken", "skipped"]
    says: str
    """The law in words."""
    message: str = ""
    """Why it is broken, or was skipped."""
    report: str = ""
    """The same with its traceback."""


def missing_packages() -> list[str]:
    """What kits need and is not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def kit_of(slot: str) -> type[Kit] | None:
    """The kit of a slot; None where there is none."""
    name = "".join(word.capitalize() for word in slot.split("_")) + "Kit"
    if name not in public:
        return None
    kit: type[Kit] = getattr(import_module("corekit.testing"), name)
    return kit


def subject(slot: str, name: str, options: Mapping[str, Any], imports: Sequence[str] = ()) -> type[Kit]:
    """The kit of the slot for the provider of this full name, as an author's test file would declare it. imports: as in `[plugins] import`."""
    catalog = build_catalog(discover(imports=imports))
    found = catalog.find(slot, name, "the provider to check")

    def candidate(self: Kit) -> Candidate:
        return found

    kit = kit_of(slot) or type("BareKit", (Kit,), {"slot": slot})
    return type(kit.__name__, (kit,), {"provider": found.provider, "options": dict(options), "candidate": candidate})


def run_kit(slot: str, name: str, options: Mapping[str, Any], imports: Sequence[str], tell: Callable[[Verdict], None]) -> bool:
    """Run every law and tell each verdict as it comes. True: none is broken, and at least one holds."""
    import pytest
    from hypothesis import configuration

    kit = kit_of(slot)
    assert kit is not None
    reports = _Reports(kit, _home(slot, name, imports), tell)
    with TemporaryDirectory(prefix="corekit-check-") as folder:
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        file = Path(folder, f"{Path(folder).name.replace('-', '_')}.py")  # its own name: modules stay while the process lives
        file.write_text(TEST_FILE.format(slot=slot, name=name, options=dict(options), imports=tuple(imports)))
        arguments = [
            "-c",
            str(Path(folder, "pytest.ini")),
            "--rootdir",
            folder,
            "--import-mode=importlib",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:terminal",
            str(file),
        ]
        configuration.set_hypothesis_home_dir(folder)  # else it leaves a folder of its own where the user stands
        try:
            code = pytest.main(arguments, plugins=[reports])
        finally:
            sys.modules.pop(file.stem, None)
            configuration.set_hypothesis_home_dir(None)
    return code == pytest.ExitCode.OK and reports.num_held > 0


def _home(slot: str, name: str, imports: Sequence[str]) -> Path | None:
    """The folder of the part's own code, or its only file; None where nobody can tell."""
    found = build_catalog(discover(imports=imports)).find(slot, name, "the provider to check")
    module = sys.modules.get(found.plugin.module.partition(".")[0])
    file = getattr(module, "__file__", None)
    if not file:
        return None
    return Path(file).resolve().parent if hasattr(module, "__path__") else Path(file).resolve()


class _Reports:
    """A pytest plugin: hears the outcome of each law once."""

    def __init__(self, kit: type[Kit], home: Path | None, tell: Callable[[Verdict], None]) -> None:
        self.num_held = 0
        self._kit, self._home, self._tell = kit, home, tell

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        law = report.nodeid.rpartition("::")[2]
        says = " ".join((inspect.getdoc(getattr(self._kit, law, None)) or "").split())
        if report.passed:
            self.num_held += 1
            self._tell(Verdict(law=law, outcome="holds", says=says))
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._tell(Verdict(law=law, outcome="skipped", says=says, message=reason))
        else:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash is not None else report.longreprtext
            message += self._place(report)
            self._tell(Verdict(law=law, outcome="broken", says=says, message=message, report=report.longreprtext))

    def _place(self, report: pytest.TestReport) -> str:
        """Where the part's own code was when it broke, so that nobody has to look for it in a traceback."""
        entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
        places = [place for entry in entries if (place := getattr(entry, "reprfileloc", None)) is not None]
        mine = [place for place in places if self._home is not None and Path(place.path).resolve().is_relative_to(self._home)]
        return f"\nin {Path(mine[-1].path).resolve()}:{mine[-1].lineno}" if mine else ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell(Verdict(law="(collection)", outcome="broken", says="pytest could not collect the kit", message=report.longreprtext))

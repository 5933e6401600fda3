"""The suite's own rule about skips and slow tests, run on small suites by pytester."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).resolve().parent.parent / "conftest.py"

SKIPS = """
import pytest

def test_runs(): pass

def test_plain(): pytest.skip("no idea")

@pytest.mark.skipif(True, reason="not today")
def test_marked(): pass

def test_hardware(): pytest.skip("needs hardware: a GPU")

@pytest.mark.skipif(True, reason="needs traces: conversations.jsonl")
def test_traces(): pass

@pytest.mark.xfail(reason="known")
def test_expected_failure(): assert False

@pytest.fixture
def absent(): pytest.skip("fixture is absent")

def test_fixture(absent): pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini("[pytest]\nmarkers = slow: not by default")
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> dict[str, int]:
    return suite.runpytest_inprocess("-p", "no:cacheprovider", *arguments).parseoutcomes()


def test_ci_turns_unexcused_skips_into_failures(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(SKIPS)
    result = suite.runpytest_inprocess("-p", "no:cacheprovider")
    # A mark or a fixture skips during setup, and what fails there pytest counts as an error.
    assert result.parseoutcomes() == {"passed": 1, "failed": 1, "errors": 2, "skipped": 2, "xfailed": 1}
    result.stdout.fnmatch_lines(["*skipped under CI=true: no idea*"])


@pytest.mark.parametrize("ci", [None, "false", ""])
def test_without_ci_a_skip_is_a_skip(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str | None) -> None:
    monkeypatch.delenv("CI", raising=False) if ci is None else monkeypatch.setenv("CI", ci)
    suite.makepyfile(SKIPS)
    assert run(suite) == {"passed": 1, "skipped": 5, "xfailed": 1}


@pytest.mark.parametrize(("reason", "outcome"), [("no module", "errors"), ("needs hardware: a GPU", "skipped")])
def test_ci_judges_skipped_modules_too(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, reason: str, outcome: str) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(f"import pytest\npytest.skip({reason!r}, allow_module_level=True)")
    assert run(suite) == {outcome: 1}


def test_slow_tests_run_only_when_asked_for(suite: pytest.Pytester) -> None:
    suite.makepyfile("import pytest\n@pytest.mark.slow\ndef test_slow(): pass\ndef test_fast(): pass")
    assert run(suite) == {"passed": 1, "deselected": 1}
    assert run(suite, "-m", "slow") == {"passed": 1, "deselected": 1}
    assert run(suite, "-m", "slow or not slow") == {"passed": 2}
    assert run(suite, "test_slow_tests_run_only_when_asked_for.py::test_slow") == {"passed": 1}

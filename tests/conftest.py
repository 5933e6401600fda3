"""What every test stands on: quiet threads, an importable tree, the demo model, and the rule about skips.

Knows no slot and no room; what a room's tests share lives in that room's own conftest.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

# Before anything imports torch: OpenMP's threads sleep between regions instead of spinning against their neighbours.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# One each: where a whole run has several processes, they have the cores among them.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else str(min(2, os.cpu_count() or 1)))

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from corekit.api import WeightSource

EXCUSES = ("needs hardware:", "needs traces:")
"""A skip whose reason starts with one of these stays a skip under CI=true."""

ROOT = Path(__file__).resolve().parent.parent
if not any(distributions(name="corekit")):
    # A checkout that was never installed still runs its tests, those that start a fresh interpreter included.
    _roots = [str(ROOT), str(ROOT / "plugins")]
    sys.path[:0] = _roots
    os.environ["PYTHONPATH"] = os.pathsep.join([*_roots, *filter(None, [os.environ.get("PYTHONPATH")])])


# How fast a busy machine draws an example says nothing about the code.
settings.register_profile("corekit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("corekit")


@pytest.fixture(autouse=True)
def _python_collects_garbage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines leave the collector alone: hundreds of them, each with two full collections of a heap with torch in it, take minutes."""
    if request.node.get_closest_marker("owns_collector") is None:
        monkeypatch.setattr("corekit.engine.collector.Collector.start", lambda self: None)


@pytest.fixture(scope="session")
def demo_cache_dir() -> Path:
    """The user's own cache folder, so that the demo model is downloaded once and not once per run."""
    from corekit.compose.surroundings import cache_dir

    return cache_dir(os.environ)


@pytest.fixture(scope="session")
def demo_source(demo_cache_dir: Path) -> WeightSource:
    """The demo model, by corekit's own road: the first run downloads it, later ones work offline."""
    from corekit.weights import DEMO_SOURCE, open_source

    return open_source(DEMO_SOURCE, cache_dir=demo_cache_dir, progress=False)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process for each core and one more when everything runs, since tests wait for a fifth of their time: for servers, clients and clocks.

    None besides this one for a file or two, where starting them would take longer.
    """
    chosen = [argument for argument in config.args if Path(argument).resolve() != ROOT / "tests"]
    if chosen or config.option.keyword:
        return 0
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests and what they import stay: Python's collector need not look for garbage among them, neither meanwhile nor ever again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("corekit")
    group.addoption("--fuzz", type=int, default=2000, metavar="N", help="requests of the fuzz test (-m ci), at least 100; default: 2000")
    group.addoption("--soak", type=float, default=0.0, metavar="SECONDS", help="run the soak test (-m soak) for so long; default: not at all")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `slow` or `ci` run only when asked for, by `-m` or by their own node id; `soak` by its option besides."""
    unasked = set() if config.option.markexpr or any("::" in argument for argument in config.args) else {"slow", "ci"}
    if not config.option.soak:
        unasked.add("soak")
    left = [item for item in items if any(item.get_closest_marker(marker) for marker in unasked)]
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(left)
        items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        _judge_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _judge_skip(report)
    return report


def _judge_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With CI=true a skip is a test that did not run: a failure, unless its reason is one of EXCUSES."""
    if os.environ.get("CI") != "true" or not report.skipped:
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")
    if not reason.startswith(EXCUSES):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI=true: {reason}\nA test that cannot run there must say {' or '.join(EXCUSES)} what is absent, or run."

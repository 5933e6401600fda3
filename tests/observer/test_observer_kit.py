"""The kit of observers on a right one, on one with a thread of its own, and on broken ones."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from queue import SimpleQueue

import pytest
from kit_mutants import breaks, laws, subject
from observer_mutants import MUTANTS, Right, provider_of
from page_examples import check_examples

from corekit.api import Provider, RequestStats, StepStats
from corekit.testing import Kit, ObserverKit


class Counting:
    """Counts in a thread, which ends with the observer's process."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._news: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._count, daemon=True).start()

    def on_step(self, stats: StepStats) -> None:
        self._news.put("steps")

    def on_request(self, stats: RequestStats) -> None:
        self._news.put(stats.finish_reason)

    def _count(self) -> None:
        while True:
            self.counts[self._news.get()] += 1


class TestRight(ObserverKit):
    provider = provider_of(Right)


class TestCounting(ObserverKit):
    provider = Provider(name="counting", api=1, summary="counts in a thread, for a test", build=lambda context, options: Counting())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_observer_breaks_its_law(mutant: type[Right]) -> None:
    assert breaks(subject(ObserverKit, provider_of(mutant)), MUTANTS[mutant])


def test_every_law_of_observers_has_a_mutant() -> None:
    own = set(laws(subject(ObserverKit, provider_of(Right)))) - set(dir(Kit))
    assert set(MUTANTS.values()) == own


def test_the_example_of_the_page_passes_its_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_examples("observer", tmp_path, monkeypatch)

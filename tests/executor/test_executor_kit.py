"""The executor kit on our own executors; every planted fault is caught by a law of its own."""

from __future__ import annotations

import pytest
from executor_mutants import MUTANTS, RIGHT
from kit_mutants import breaks, laws, subject

from corekit.testing import ExecutorKit


class TestInProcess(ExecutorKit):
    provider = "in-process"


class TestDelayed(ExecutorKit):
    provider = "delayed"


class TestDelayedDeeper(ExecutorKit):
    provider = "delayed"
    options = {"depth": 5}  # noqa: RUF012


class TestDeferred(ExecutorKit):
    """The right executor that the faults are planted in."""

    provider = RIGHT


@pytest.mark.parametrize(("mutant", "law"), [pytest.param(provider, law, id=provider.name) for provider, law in MUTANTS])
def test_a_fault_is_caught(mutant, law) -> None:
    assert breaks(subject(ExecutorKit, mutant), law), f"{law} lets {mutant.name} pass"


def test_every_fault_has_a_law_of_its_own() -> None:
    named = [law for _, law in MUTANTS]
    assert len(set(named)) == len(named) >= 4
    assert set(named) <= set(laws(subject(ExecutorKit, RIGHT)))

"""The kit of policies on our own, and on broken ones."""

from __future__ import annotations

import pytest
from kit_mutants import breaks, laws, subject
from scheduler_policy_mutants import MUTANTS, ShortestFirst, provider_of

from corekit.testing import SchedulerPolicyKit


class TestFcfs(SchedulerPolicyKit):
    provider = "fcfs"
    max_reads = 10_000


class TestPriority(SchedulerPolicyKit):
    provider = "priority"
    max_reads = 10_000


class TestPlanInOrder(SchedulerPolicyKit):
    provider = provider_of(ShortestFirst)
    max_reads = 10_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_policy_breaks_its_law(mutant: type) -> None:
    assert breaks(subject(SchedulerPolicyKit, provider_of(mutant)), MUTANTS[mutant])


def test_every_mutant_has_a_law_of_its_own() -> None:
    assert len(set(MUTANTS.values())) == len(MUTANTS) >= 8
    assert set(MUTANTS.values()) <= set(laws(subject(SchedulerPolicyKit, provider_of(ShortestFirst))))

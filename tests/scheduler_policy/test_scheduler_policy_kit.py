"""The kit of policies on our own, and on broken ones."""

from __future__ import annotations

import asyncio

import pytest
from kit_mutants import breaks, laws, subject
from scheduler_policy_mutants import MUTANTS, ShortestFirst, provider_of

from corekit.builtin.fcfs import Fcfs
from corekit.compose.assemble import assemble
from corekit.testing import SchedulerPolicyKit
from corekit.testing.policy_answers import alone, ask, tables
from corekit.testing.simulated_engine import Arrival, Scenario, SimulatedEngine, play
from corekit.testing.simulated_step import Sizes, Step


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


@pytest.mark.parametrize("depth", [1, 2])
def test_the_simulation_computes_a_shared_prefix_once(depth: int) -> None:
    """Who begins as another does leaves `waiting` until the prefix is there, is told of by num_awaiting, and computes what is its own."""
    engine, away = SimulatedEngine(Fcfs(), Sizes(num_blocks=24, max_num_batched_tokens=8, depth=depth)), []

    def look(step: Step) -> None:
        away.append((len(engine.awaiting), len(step.waiting)))

    arrivals = (Arrival(num_prompt_tokens=20, max_tokens=1), *(Arrival(num_prompt_tokens=18, max_tokens=1, shares_with=0, num_shared=16) for _ in range(2)))
    play(engine, Scenario(sizes=engine.sizes, arrivals=arrivals), max_steps=100, look=look)
    assert engine.num_computed == 20 + 2 * 2
    assert away[0] == (0, 3), "they are in `waiting` until they are asked for"
    assert (2, 0) in away


def test_nobody_awaits_a_writer_that_is_gone() -> None:
    engine = SimulatedEngine(Fcfs(), Sizes(num_blocks=24, max_num_batched_tokens=4))
    arrivals = (Arrival(num_prompt_tokens=20, max_tokens=1), Arrival(num_prompt_tokens=18, max_tokens=1, shares_with=0, num_shared=16))
    play(engine, Scenario(sizes=engine.sizes, arrivals=arrivals, aborts=((2, 0),)), max_steps=100)
    assert engine.num_computed == 8 + 18 - 8, "what the other had written is there, and no more"


def test_the_kit_has_requests_that_await_a_prefix() -> None:
    kit = subject(SchedulerPolicyKit, "fcfs")
    assert isinstance(kit, SchedulerPolicyKit)
    seen = 0
    for scenario in kit.scenarios(shares=True):
        engine = kit.engine(scenario.sizes)

        def look(step: Step, engine: SimulatedEngine = engine) -> None:
            nonlocal seen
            seen += len(engine.awaiting)

        play(engine, scenario, max_steps=10**4, look=look)
    assert seen >= 10


def test_the_whole_engine_of_the_kit_parks_and_finds() -> None:
    """Otherwise its law about answers would say nothing of that."""
    with assemble(tables(3, keeps=True), frontends=[], progress=False) as assembly:
        assert list(asyncio.run(ask(assembly.client, together=True))) == list(alone())
        stats = assembly.client.stats()
    assert stats.num_swap_preemptions > 0
    assert stats.num_preemptions > stats.num_swap_preemptions, "the swap space is small enough to be full at times"
    assert stats.num_prefix_hits > 0
    assert stats.memory.num_evicted > 0

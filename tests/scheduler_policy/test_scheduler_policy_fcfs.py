"""What fcfs promises beyond the kit: nobody overtakes, and the youngest gives way. In the order of arrival, `plan_in_order` promises the same."""

from __future__ import annotations

import pytest

from corekit.api import StepPlan, plan_in_order
from corekit.builtin.fcfs import Fcfs
from corekit.testing.simulated_engine import Arrival, SimulatedEngine
from corekit.testing.simulated_step import Sizes


class InOrder:
    def plan(self, step: StepPlan) -> None:
        plan_in_order(step, admit=lambda request: request.arrival)


@pytest.fixture(params=[Fcfs, InOrder])
def policy(request: pytest.FixtureRequest) -> Fcfs | InOrder:
    made: Fcfs | InOrder = request.param()
    return made


def engine(policy: Fcfs | InOrder, *lengths: int, **sizes: int) -> SimulatedEngine:
    """Requests 1, 2, ... of so many tokens wait."""
    made = SimulatedEngine(policy, Sizes(**sizes))
    for length in lengths:
        made.arrive(Arrival(num_prompt_tokens=length, max_tokens=8))
    return made


def step(engine: SimulatedEngine) -> tuple[list[int], list[int]]:
    """Who got tokens, and who gave way."""
    engine.settle(engine.plan())
    granted, victims = engine.log[-1]
    return [id for id, _ in granted], list(victims)


def test_running_requests_come_before_waiting_ones(policy: Fcfs | InOrder) -> None:
    some = engine(policy, 3, 3, max_num_batched_tokens=6)
    assert step(some) == ([1, 2], [])
    some.arrive(Arrival(num_prompt_tokens=9, max_tokens=1))
    assert step(some) == ([1, 2, 3], [])
    assert some.log[-1][0] == ((1, 1), (2, 1), (3, 4))


def test_admission_stops_at_the_first_that_does_not_fit(policy: Fcfs | InOrder) -> None:
    assert step(engine(policy, 4, 40, 4, num_blocks=8, max_num_batched_tokens=64)) == ([1], [])  # 3 is younger than 2, and must not overtake it


def test_the_youngest_gives_way_and_nobody_new_is_admitted(policy: Fcfs | InOrder) -> None:
    some = engine(policy, 4, 4, 4, 4, num_blocks=3, max_num_seqs=4)
    assert step(some) == ([1, 2, 3], [])
    assert step(some) == ([1], [3, 2])  # each needs its second block: 3 makes room for 1, and 2 itself is then the youngest
    while some.samples:
        granted, _ = step(some)
        assert granted == sorted(granted)


def test_nobody_is_admitted_before_a_victim_has_come_back(policy: Fcfs | InOrder) -> None:
    some = engine(policy, 4, 8, num_blocks=4, depth=3, max_num_batched_tokens=64)
    assert step(some) == ([1, 2], [])
    some.arrive(Arrival(num_prompt_tokens=2, max_tokens=2))
    assert step(some) == ([1], [2])
    assert step(some) == ([1], [])  # a block is free for 3, and the last token of 2 is in flight
    while some.samples:
        order = [s.id for s in some.waiting]
        assert order == sorted(order)
        step(some)

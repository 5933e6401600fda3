"""`plan_in_order` and the order that it keeps, against sorting all that wait in every step."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from corekit import SamplingParams, assemble
from corekit.api import EngineClient, Prompt, Reason, RequestState, StepPlan, WaitingOrder, plan_in_order
from corekit.testing.simulated_engine import Arrival, SimulatedEngine, play, random_scenario
from corekit.testing.simulated_step import Sizes


def length(request: Any) -> int:
    return request.num_prompt_tokens % 4  # many equals


class Compared(WaitingOrder):
    """Plans in order, after it has compared its order with a fresh one."""

    def __init__(self, *, victims_first: bool, deaf_to: tuple[str, ...] = (), rng: Random | None = None) -> None:
        super().__init__(length, victims_first=victims_first)
        self.victims_first = victims_first
        self.deaf_to = deaf_to
        self.rng = rng
        self.away: dict[int, Any] = {}

    def plan(self, step: StepPlan) -> None:
        for request in self.away.values():  # as priority does: a victim takes its place at once
            self.add(request)
        seen = list(self.now(step))
        waiting = [*step.waiting, *(r for r in self.away.values() if r.state is not RequestState.RUNNING and r not in step.waiting)]
        if not self.deaf_to:
            right = sorted(waiting, key=lambda r: (self.victims_first and r.state is RequestState.WAITING, length(r), r.arrival, r.id))
            assert seen == right
        else:
            assert set(step.waiting) <= set(seen)
            assert [r for r in seen if r.state is RequestState.RUNNING] == []
        plan_in_order(step, admit=self)
        self.away = {r.id: r for r in step.preempted} | {id: r for id, r in self.away.items() if r not in step.waiting and r.state is not RequestState.RUNNING}

    def on_arrive(self, request: Any) -> None:
        if "on_arrive" not in self.deaf_to:
            super().on_arrive(request)

    def on_leave(self, request: Any) -> None:
        self.away.pop(request.id, None)
        if "on_leave" not in self.deaf_to:
            super().on_leave(request)


@pytest.mark.parametrize("victims_first", [True, False])
def test_the_kept_order_is_that_of_sorting_all(victims_first: bool) -> None:
    num_victims = 0
    for seed in range(40):
        scenario = random_scenario(Random(seed), num_arrivals=30)
        policy = Compared(victims_first=victims_first)
        engine = SimulatedEngine(policy, scenario.sizes)
        play(engine, scenario, max_steps=5000)
        num_victims += sum(len(victims) for _, victims in engine.log)
        assert not policy._requests and not policy._ranks
    assert num_victims > 20


@pytest.mark.parametrize("deaf_to", [("on_arrive",), ("on_leave",), ("on_arrive", "on_leave")])
def test_an_order_that_was_not_told_finds_out(deaf_to: tuple[str, ...]) -> None:
    """The fallback planned, or the policy is wrapped by one that passes nothing on: everybody still has a place."""
    for seed in range(20):
        scenario = random_scenario(Random(seed), num_arrivals=20)
        engine = SimulatedEngine(policy := Compared(victims_first=True, deaf_to=deaf_to), scenario.sizes)
        play(engine, scenario, max_steps=5000)
        engine.arrive(Arrival(num_prompt_tokens=1, max_tokens=2))
        engine.plan()
        assert len(policy._requests) == 1


class Everybody(WaitingOrder):
    """Compares its order with all that live and do not run, wherever they are."""

    def __init__(self) -> None:
        super().__init__(length)
        self.alive: dict[int, Any] = {}
        self.num_away = 0

    def plan(self, step: StepPlan) -> None:
        there = [r for r in self.alive.values() if r.state is not RequestState.RUNNING]
        assert list(self.now(step)) == sorted(there, key=lambda r: (r.state is RequestState.WAITING, length(r), r.arrival, r.id))
        assert len(there) == len(step.waiting) + step.num_awaiting
        self.num_away += step.num_awaiting
        plan_in_order(step, admit=self)

    def on_arrive(self, request: Any) -> None:
        self.alive[request.id] = request
        super().on_arrive(request)

    def on_leave(self, request: Any) -> None:
        del self.alive[request.id]
        super().on_leave(request)


def test_who_awaits_a_prefix_keeps_its_place() -> None:
    num_away = 0
    for seed in range(60):
        scenario = random_scenario(Random(seed), depth=1, shares=True, num_arrivals=20)
        policy = Everybody()
        play(SimulatedEngine(policy, scenario.sizes), scenario, max_steps=5000)
        num_away += policy.num_away
        assert not policy._requests and not policy._ranks
    assert num_away > 50


def test_who_awaits_a_prefix_makes_nobody_look_through_all_that_wait() -> None:
    class Looking(WaitingOrder):
        def plan(self, step: StepPlan) -> None:
            step.schedule_many(step.running)
            step.schedule_many(self.now(step)[:8])

    sizes = Sizes(num_blocks=400, max_num_seqs=2, max_num_batched_tokens=8, long_prefill_token_threshold=4)
    engine = SimulatedEngine(Looking(lambda request: request.arrival), sizes)
    engine.arrive(Arrival(num_prompt_tokens=400, max_tokens=2))
    for number in range(3000):
        shared = {"shares_with": 0, "num_shared": 200} if number < 5 else {}
        engine.arrive(Arrival(num_prompt_tokens=300, max_tokens=9, **shared))
    for number in range(20):
        step = engine.plan()
        engine.settle(step)
        if number > 1:
            assert len(engine.awaiting) == 5
            assert engine.conduct.num_reads < 100, f"{engine.conduct.num_reads} attributes of {len(step.waiting)} requests were read"


def test_many_leave_the_order_at_once() -> None:
    engine = SimulatedEngine(policy := Compared(victims_first=True), Sizes(num_blocks=400, max_num_seqs=40, max_num_batched_tokens=400))
    for number in range(100):
        engine.arrive(Arrival(num_prompt_tokens=1 + number % 7, max_tokens=3))
    while engine.samples:
        engine.settle(engine.plan())
    assert len(engine.log[0][0]) == 40
    assert not policy._requests


class InOrder:
    def __init__(self, **keys: Any) -> None:
        self.keys = keys

    def plan(self, step: StepPlan) -> None:
        plan_in_order(step, **self.keys)


def planned(policy: Any, *lengths: int, steps: int = 1, **sizes: int) -> list[tuple[list[int], list[int]]]:
    engine = SimulatedEngine(policy, Sizes(max_num_batched_tokens=64, **sizes))
    for number in lengths:
        engine.arrive(Arrival(num_prompt_tokens=number, max_tokens=9))
    for _ in range(steps):
        engine.settle(engine.plan())
    return [([id for id, _ in granted], list(victims)) for granted, victims in engine.log]


def test_a_plain_key_decides_who_is_admitted() -> None:
    assert planned(InOrder(admit=lambda r: r.num_prompt_tokens), 5, 3, 4, 3, max_num_seqs=3) == [([2, 4, 3], [])]


def test_the_one_admitted_last_gives_way_unless_a_key_says_otherwise() -> None:
    def first(r: Any) -> int:
        return r.arrival

    assert planned(InOrder(admit=first), 4, 7, 4, num_blocks=4, steps=2)[1] == ([1, 2], [3])
    assert planned(InOrder(admit=first, victim=lambda r: r.num_prompt_tokens), 4, 7, 4, num_blocks=4, steps=2)[1] == ([1, 3], [2])
    assert planned(InOrder(admit=first, victim=lambda r: 0), 4, 7, 4, num_blocks=4, steps=2)[1] == ([1, 2], [3])  # of equals, the one admitted last


def test_victims_come_back_before_shorter_new_ones() -> None:
    policy = InOrder(admit=lambda r: r.num_prompt_tokens, victim=lambda r: r.num_prompt_tokens)
    engine = SimulatedEngine(policy, Sizes(num_blocks=4, max_num_batched_tokens=64))
    for number in (4, 8, 4):
        engine.arrive(Arrival(num_prompt_tokens=number, max_tokens=3))
    engine.settle(engine.plan())
    engine.settle(engine.plan())
    assert engine.log[1][1] == (2,)
    engine.arrive(Arrival(num_prompt_tokens=1, max_tokens=1))
    admitted = []
    while engine.samples:
        engine.settle(engine.plan())
        admitted += [id for id, _ in engine.log[-1][0] if id in (2, 4) and id not in admitted]
    assert admitted == [2, 4]


def test_the_key_is_read_once_for_each_wait() -> None:
    read: list[int] = []

    class Reading(WaitingOrder):
        def __init__(self) -> None:
            super().__init__(lambda r: read.append(r.id) or 0)

        def plan(self, step: StepPlan) -> None:
            plan_in_order(step, admit=self)

    planned(Reading(), *[4] * 30, num_blocks=12, steps=6)
    engine_victims = len(read) - len(set(read))
    assert set(read) == set(range(1, 31))
    assert engine_victims < 10


def test_nothing_is_sorted_while_no_seat_is_free() -> None:
    asked: list[int] = []
    planned(InOrder(admit=lambda r: asked.append(r.id) or r.arrival), 3, 3, 3, max_num_seqs=1, steps=4)
    assert asked == [1, 2, 3]


def test_running_ones_without_budget_make_nobody_give_way() -> None:
    engine = SimulatedEngine(InOrder(admit=lambda r: r.arrival), Sizes(max_num_batched_tokens=2))
    for _ in range(3):
        engine.arrive(Arrival(num_prompt_tokens=1, max_tokens=4, num_samples=1))
    for _ in range(3):
        step = engine.plan()
        assert not step.victims and step.refused <= {Reason.BUDGET}
        engine.settle(step)


def test_a_policy_may_order_by_the_longest_answer_that_was_asked_for() -> None:
    """`max_output_tokens` is what the caller said, else what the context leaves; equal prompts are served shortest answer first."""
    seen: dict[int, int] = {}

    class ShortestAnswer(WaitingOrder):
        def plan(self, step: StepPlan) -> None:
            seen.update({request.id: request.max_output_tokens for request in step.waiting})
            plan_in_order(step, admit=self)

    ended: list[int | None] = []
    tables: dict[str, Any] = {"scheduler": {"max_num_seqs": 1}, "block_allocator": {"num_blocks": 4}, "tokenizer": {"use": "bytes"}}
    tables["model"] = {"source": "none", "use": "fingerprint", "max_model_len": 16}

    async def ask(client: EngineClient, max_tokens: int | None) -> None:
        async for _ in client.generate(Prompt(text="four", add_special_tokens=False), SamplingParams(max_tokens=max_tokens, ignore_eos=True)):
            pass
        ended.append(max_tokens)

    async def main() -> None:
        with assemble(tables, scheduler_policy=ShortestAnswer(lambda request: request.max_output_tokens), frontends=[]) as assembly:
            await asyncio.gather(*(ask(assembly.client, number) for number in (None, 7, 2, 5)))

    asyncio.run(main())
    assert list(seen.values()) == [12, 7, 2, 5]
    assert [number for number in ended if number is not None] == [2, 5, 7]

"""The simulated engine of the policies' kit answers a policy as the scheduler does, move for move."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from bare import Bare

from corekit.api import SchedulerPolicy
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.priority import Priority
from corekit.testing.simulated_engine import Scenario, play, random_scenario
from corekit.testing.simulated_engine import SimulatedEngine as Simulated


class Wild:
    """Random moves, and everything that it is answered; then first come, first served, so that something happens."""

    def __init__(self) -> None:
        self.rng = Random(0)
        self.heard: list[Any] = []

    def plan(self, step: Any) -> None:
        rng = self.rng
        self.heard += [(r.id, r.state, r.is_prefill, r.num_computed_tokens, r.num_output_tokens, r.num_in_flight, r.num_blocks) for r in step.running]
        self.heard += [([r.id for r in step.waiting], step.num_returning, step.token_budget, step.seats, step.free_blocks)]
        everyone = [*step.running, *step.waiting]
        for _ in range(rng.randrange(5) if everyone else 0):
            one = rng.choice(everyone)
            candidates = rng.sample(everyone, rng.randint(0, len(everyone)))
            victims = step.victims_for(one, candidates)
            self.heard.append(None if victims is None else [r.id for r in victims])
            if rng.random() < 0.2 and len(step.resident) > 2:
                step.preempt(rng.choice(step.resident))
            else:
                self.heard.append(step.schedule(one, rng.choice((None, None, 0, 2))))
        Fcfs().plan(step)

    def on_arrive(self, request: Any) -> None:
        self.heard.append(("arrives", request.id, request.state, request.num_samples))

    def on_progress(self, request: Any, prompt_tokens: int, output_tokens: int) -> None:
        self.heard.append(("goes on", request.id, prompt_tokens, output_tokens))

    def on_leave(self, request: Any) -> None:
        self.heard.append(("leaves", request.id))


def really(policy: SchedulerPolicy, scenario: Scenario) -> list[Any]:
    """The log of the same history on the scheduler itself."""
    sizes, log, flights = scenario.sizes, [], deque()
    bare = Bare(
        policy,
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_num_seqs=sizes.max_num_seqs,
        budget=sizes.max_num_batched_tokens,
        watermark_blocks=sizes.watermark_blocks,
        long_prefill_token_threshold=sizes.long_prefill_token_threshold,
    )
    scheduler, coming = bare.scheduler, deque(sorted(scenario.arrivals, key=lambda asked: asked.step))
    while coming or scheduler.groups or flights:
        while coming and coming[0].step <= len(log):
            asked = coming.popleft()
            bare.add(asked.num_prompt_tokens, max_tokens=asked.max_tokens, n=asked.num_samples, priority=asked.priority)
        for at, number in scenario.aborts:
            if at == len(log):
                scheduler.end(f"r{number}", sample=None, reason="abort")
        rows = bare.schedule()
        log.append((tuple((row.request.id, row.num_tokens) for row in rows), tuple(r.id for r in scheduler.step.victims)))
        if rows:
            flights.append(rows)
        if flights and (len(flights) >= sizes.depth or not rows):
            bare.commit(flights.popleft())
    assert not scheduler.planner.reported
    return log


@pytest.mark.parametrize("made", [Fcfs, Priority, Wild])
def test_the_same_history_gives_the_same_plans(made: Callable[[], Any]) -> None:
    num_victims = 0
    for seed in range(60):
        scenario = random_scenario(Random(seed))
        arrivals = tuple(replace(asked, ends_at=1 << 30, num_cached=0) for asked in scenario.arrivals)
        scenario = Scenario(sizes=scenario.sizes, arrivals=arrivals, aborts=scenario.aborts)
        simulated, real = made(), made()
        engine = Simulated(simulated, scenario.sizes)
        play(engine, scenario, max_steps=10**4)
        assert engine.log == really(real, scenario)
        assert getattr(simulated, "heard", None) == getattr(real, "heard", None)
        num_victims += sum(len(victims) for _, victims in engine.log)
    assert num_victims > 20

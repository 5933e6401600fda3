"""Those who wait for a prefix that another computes: counted, left alone, aborted, and looked at no more than needed."""

from __future__ import annotations

from typing import Any

import pytest
from forced import finish
from prefixes import PREFIX, add, cached, total
from world import Setting, World

from corekit.api import Reason
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.priority import Priority


class Asking(Fcfs):
    """Whether somebody should give way for those who wait for a prefix: nobody, that is not what they lack."""

    answers: tuple[Any, ...] = ()
    before: tuple[Any, ...] = ()

    def plan(self, step: Any) -> None:
        self.before += tuple(step.victims_for(r, list(step.resident)) for r in step.waiting)
        super().plan(step)
        for r in step.waiting:
            self.answers += ((step.victims_for(r, list(step.resident)), step.schedule(r).reason, step.num_awaiting),)


def test_those_who_wait_for_a_prefix_count_as_waiting_and_as_queued() -> None:
    world = World(Setting(stack="lru", num_blocks=60, long_prefill_token_threshold=6))
    asking = world.scheduler.planner.policy = Asking()
    for number in range(4):
        world.ask([*range(16), 30 + number], max_tokens=2)
    world.step()
    engine, scheduler = world.engine, world.scheduler
    assert asking.answers == ((None, Reason.SCHEDULED, 3), *[(None, Reason.NOT_READY, 3)] * 3)
    assert (scheduler.step.num_awaiting, scheduler.waiting.requests) == (3, [])
    assert (engine.num_running, engine.num_waiting, engine.stats().num_waiting) == (1, 3, 3)
    assert (engine.num_queued, engine.num_queued_tokens) == (3, 3 * 17)
    world.abort("r2")
    world.ask(range(16), max_tokens=2)
    world.step()
    assert asking.before == ([], [], [], [], None), "nobody ran in the first step"
    world.abort("r4")
    world.step()
    assert (engine.num_waiting, engine.num_queued, engine.num_queued_tokens) == (2, 2, 2 * 17)
    finish(world)
    assert world.asked["r2"].reasons == {0: "abort"}


@pytest.mark.parametrize("when", ["it waits", "it was woken", "it stands in line again"])
def test_a_waiter_may_be_aborted_whenever(when: str) -> None:
    bare = cached(long_prefill_token_threshold=4, max_num_seqs=2)
    requests = [add(bare, number) for number in range(4)]
    last = requests[3]
    for _ in range(12):
        bare.step()
        if when == "it waits" or (last.awaits is None and (when == "it was woken" or last.queued)):
            break
    assert (last.awaits is not None, last.queued) == {"it waits": (True, False), "it was woken": (False, False), "it stands in line again": (False, True)}[when]
    bare.scheduler.end("r3", sample=None, reason="abort")
    assert bare.scheduler.num_waiting == bare.scheduler.waiting.num_queued
    bare.run()
    assert total(bare) == 24 + 3 * (3 + 1)


@pytest.mark.parametrize("policy", [Fcfs, Priority])
def test_two_thousand_that_wait_for_one_prefix_are_looked_at_twice(policy: Any) -> None:
    """Once when they begin to wait, once when they are admitted; in between nobody asks."""
    bare = cached(policy(), budget=4096, max_num_seqs=64, num_blocks=512, long_prefill_token_threshold=4)
    for number in range(2000):
        bare.add([*PREFIX, number], max_tokens=1)
    for _ in range(5):
        bare.step()
    stack: Any = bare.scheduler.blocks.stack
    assert (bare.scheduler.claims.num_awaiting, stack.num_finds) == (1999, 2000)
    bare.run()
    assert total(bare) == 24 + 2000
    assert stack.num_finds <= 2 * 2000 + 100

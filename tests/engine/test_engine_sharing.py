"""Equal prefixes in flight are computed once: laws of work, counted in positions."""

from __future__ import annotations

from typing import Any

import pytest
from bare import Bare
from forced import Book, Forced, finish
from prefixes import PREFIX, add, cached, total
from test_engine_scheduler import Scripted
from world import Setting, World

from corekit.api import Reason, RequestState
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.priority import Priority
from corekit.engine.request import Request

# -- once


@pytest.mark.parametrize("policy", [Fcfs, Priority])
@pytest.mark.parametrize(("budget", "threshold"), [(256, 0), (256, 5), (7, 0), (1, 0)])
@pytest.mark.parametrize("n", [1, 3])
def test_eight_that_arrive_together_compute_their_prefix_once(policy: Any, budget: int, threshold: int, n: int) -> None:
    bare = cached(policy(), budget=budget, max_num_seqs=24, long_prefill_token_threshold=threshold)
    requests = [add(bare, number, n=n) for number in range(8)]
    bare.run()
    assert total(bare) == 24 + 8 * (3 + n)
    assert [r.group.num_cached_tokens for r in requests] == [0] + [24] * 7
    counts = bare.scheduler.counts
    assert (counts.num_prefix_queries, counts.num_prefix_hits) == (8 * 27, 7 * 24)


@pytest.mark.parametrize("policy", [Fcfs, Priority])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_so_do_eight_that_arrive_while_it_is_computed(policy: Any, depth: int) -> None:
    """Each in another step of the chunked prefill, with steps in flight."""
    bare, flights = cached(policy(), budget=5), []
    for number in range(99):
        if number < 8:
            add(bare, number)
        if rows := bare.schedule():
            flights.append(rows)
        if flights and (len(flights) == depth or not rows):
            bare.commit(flights.pop(0))
        if number > 8 and not bare.scheduler.groups:
            break
    for rows in flights:
        bare.commit(rows)
    assert total(bare) == 24 + 8 * (3 + 1)
    assert list(bare.scheduler.audit()) == []


def test_prefixes_in_one_another_are_computed_once_each() -> None:
    """Two wait for the short one, one of them computes the longer one, for which the last waits again."""
    longer = [*PREFIX, *range(8)]
    bare = cached(budget=9)
    for number, prefix in enumerate((PREFIX, longer, longer, PREFIX, longer)):
        add(bare, number + 1, prefix)
    bare.run()
    assert total(bare) == 24 + 8 + 5 * (3 + 1)


@pytest.mark.parametrize("stack", ["lru", "lru+swap", "plain"])
@pytest.mark.parametrize("depth", [1, 2])
def test_what_was_shared_in_flight_gives_the_right_answers(stack: str, depth: int) -> None:
    world = World(Setting(stack=stack, depth=depth, num_blocks=60, max_num_batched_tokens=14))
    book = Book.of(world)
    for number in range(8):
        world.ask([*range(20), number], max_tokens=3, n=1 + number % 2, temperature=1.0)
        if number == 5:
            world.step()
    finish(world)
    assert world.num_awaited >= 5
    assert book.num_tokens == 20 + 8 * 1 + (4 + 8) * 2


# -- who does not wait, and what is not shared


def test_without_a_prefix_cache_nobody_claims_and_nobody_waits() -> None:
    bare = Bare(num_blocks=96, budget=256)
    for number in range(8):
        add(bare, number)
    rows = bare.schedule()
    assert len(rows) == 8
    assert not bare.scheduler.claims._writers
    bare.commit(rows)
    bare.run()
    assert total(bare) == 8 * (27 + 1)
    assert (bare.scheduler.counts.num_prefix_queries, bare.scheduler.counts.num_prefix_hits) == (0, 0)


def test_different_salts_never_share() -> None:
    bare = cached(budget=256)
    for number in range(8):
        add(bare, number, **({"cache_salt": f"tenant {number % 3}"} if number % 3 else {}))
    rows = bare.schedule()
    assert len(rows) == 3, "one writer for each salt, and one for none"
    bare.commit(rows)
    bare.run()
    assert total(bare) == 3 * 24 + 8 * (3 + 1)


def test_who_wants_logprobs_of_its_prompt_neither_waits_nor_reads() -> None:
    bare = cached(budget=256)
    add(bare, 0)
    add(bare, 1, prompt_logprobs=1)
    rows = bare.schedule()
    assert [row.num_tokens for row in rows] == [27, 27]
    bare.commit(rows)
    add(bare, 2, prompt_logprobs=0)
    assert sorted(row.num_tokens for row in bare.step()) == [1, 1, 27]
    bare.run()
    assert bare.scheduler.counts.num_prefix_queries == 27


def test_nobody_waits_for_the_logprobs_of_another() -> None:
    """Its blocks are found once they are published, but it is no writer: it may go on reading when others have the prefix already."""
    bare = cached(budget=256)
    add(bare, 0, prompt_logprobs=1)
    add(bare, 1)
    assert len(bare.schedule()) == 2


# -- a writer that does not go on


@pytest.mark.parametrize("how", ["abort", "error", "recompute"])
def test_when_the_writer_leaves_another_goes_on_where_it_was(how: Any) -> None:
    """Seven wait for one that computes a block a step, and leaves before plan `at`."""
    for at in range(1, 7):
        bare = cached(Forced({at: lambda step: step.preempt(step.resident[0], "recompute")} if how == "recompute" else {}), long_prefill_token_threshold=4)
        writer, *others = [add(bare, number) for number in range(8)]
        for _ in range(at):
            bare.step()
        assert bare.work == {"r0": 4 * at}
        if how != "recompute":
            bare.scheduler.end("r0", sample=None, reason=how)
            assert not bare.scheduler.claims.num_awaiting
        bare.run()
        assert total(bare) == 24 + (8 if how == "recompute" else 7) * (3 + 1), at
        assert writer.group.finish_reason == ("length" if how == "recompute" else how)
        assert all(r.group.finish_reason == "length" for r in others)


@pytest.mark.parametrize("stack", ["swap", "lru+swap"])
@pytest.mark.parametrize("depth", [1, 2])
def test_when_the_writer_is_parked_the_prefix_is_still_computed_once(stack: str, depth: int) -> None:
    """It comes back before anybody new, and the others wait for it again."""
    for at in range(1, 7):
        world = World(Setting(stack=stack, depth=depth, num_blocks=90, long_prefill_token_threshold=4))
        planner = world.scheduler.planner
        planner.policy = Forced({at: lambda step: step.preempt(step.resident[0], "swap")}, planner.policy)
        book = Book.of(world)
        for number in range(4):
            world.ask([*range(24), 30 + number, 31], max_tokens=2)
        finish(world)
        assert world.engine.stats().num_swap_preemptions == 1
        assert book.num_tokens == (24 if stack == "lru+swap" else 4 * 24) + 4 * (2 + 1), at


class Starving(Fcfs):
    """Gives one request nothing in plans 2 to 5."""

    starved: Request
    number = -1

    def plan(self, step: Any) -> None:
        self.number += 1
        step.schedule_many([r for r in step.running if r is not self.starved or not 2 <= self.number < 6])
        step.schedule_many(step.waiting)


def test_when_the_writer_gets_nothing_one_of_those_who_wait_takes_over() -> None:
    """The others wait for it then: the rest of the prefix costs once more, and not once for each of them."""
    bare = cached(Starving(), long_prefill_token_threshold=4, max_num_seqs=16)
    bare.add([1, 2], max_tokens=20)  # the engine is never idle
    bare.scheduler.planner.policy.starved, second, third = [add(bare, number) for number in range(8)][:3]
    for _ in range(3):
        bare.step()
    assert bare.scheduler.claims.num_awaiting == 7
    bare.step()
    assert bare.scheduler.claims.num_awaiting == 6
    assert (second.num_computed_tokens, third.num_computed_tokens) == (8 + 4, 0)
    bare.run()
    assert total(bare) == 24 + 16 + 8 * (3 + 1) + 2 + 19


@pytest.mark.parametrize("policy", [Fcfs, Priority])
def test_a_budget_for_the_urgent_alone_stops_nobody(policy: Any) -> None:
    """The writer gets what is left of a tiny budget, and for steps on end nothing: those who wait for it come to their answers."""
    bare = cached(policy(), budget=4, max_num_seqs=12)
    for _ in range(3):
        bare.add([1, 2, 3], max_tokens=4, priority=0)
    mine = [add(bare, number, priority=5) for number in range(4)]
    starved = num_steps = 0
    while bare.scheduler.groups:
        if num_steps in (9, 30):
            for token in range(5):
                bare.add([num_steps, token], max_tokens=9, priority=0)
        rows = bare.step()
        starved += bool(rows) and mine[0].state is RequestState.RUNNING and mine[0] not in [row.request for row in rows]
        num_steps += 1
        assert num_steps < 200
    assert list(bare.scheduler.audit()) == []
    assert sum(bare.work[r.group.asked.request_id] for r in mine) <= 2 * 24 + 4 * (3 + 1)
    assert starved > 2 or policy is Fcfs


def test_who_is_woken_in_the_plan_in_which_it_began_to_wait_keeps_its_place() -> None:
    """The writer gives way after it was asked: nobody has left the line yet."""

    def ask_then_preempt(step: Any) -> None:
        assert step.schedule(waiter).reason is Reason.NOT_READY
        assert waiter.awaits is not None
        step.preempt(writer, "recompute")
        assert waiter.awaits is None

    bare = cached(Scripted(Fcfs().plan, ask_then_preempt), long_prefill_token_threshold=4)
    writer = add(bare, 0)
    bare.step()
    waiter = add(bare, 1)
    bare.step()
    assert bare.scheduler.waiting.requests == [writer, waiter]
    assert not bare.scheduler.claims.free
    bare.run()
    assert total(bare) == 24 + 2 * (3 + 1)

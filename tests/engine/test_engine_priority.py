"""The policy `priority` on the real scheduler: what it promises, held after every plan of random walks, and its rules one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bare import Bare
from unreliable_layer import Unreliable

from corekit.api import Reason, RequestState
from corekit.builtin.free_list import FreeList
from corekit.builtin.priority import Priority, rank
from corekit.testing.prefix_cache import PlainPrefixCache

ROOM = (Reason.SEATS, Reason.BLOCKS, Reason.WATERMARK)


class Watched:
    """The step, noting in order what gave way and what was granted."""

    def __init__(self, step: Any) -> None:
        self._step = step
        self.moves: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def schedule(self, request: Any, max_tokens: int | None = None) -> Any:
        grant = self._step.schedule(request, max_tokens)
        if grant:
            self.moves.append(("grant", request))
        return grant

    def schedule_many(self, requests: Any, start: int = 0) -> Any:
        before = set(self._step.rows)
        refusal = self._step.schedule_many(requests, start)
        self.moves += [("grant", request) for request in self._step.rows if request not in before]
        return refusal

    def preempt(self, request: Any, mode: Any = None) -> None:
        self.moves.append(("preempt", request))
        self._step.preempt(request, mode)


class Judged(Priority):
    """Priority, and the promises that can be read off a step once it is planned."""

    def plan(self, step: Any) -> None:
        watched = Watched(step)
        super().plan(watched)  # type: ignore[arg-type]
        granted = [request for what, request in watched.moves if what == "grant"]
        admitted = [request for request in granted if request in step.admitted and request.state is RequestState.RUNNING]
        self.nobody_is_overtaken(step, admitted)
        self.nobody_gives_way_in_vain(watched.moves, [r for r in step.resident if r.num_known > step._limits.num_blocks * step._limits.block_size])
        self.the_best_of_those_that_wait_has_no_way_in(step)
        self.nobody_is_held_while_worse_ones_enter(step, admitted)

    def nobody_is_overtaken(self, step: Any, admitted: list[Any]) -> None:
        left = [r for r in (*step.waiting, *step.preempted) if r.state is not RequestState.RUNNING and r not in step.ended and r.awaits is None]
        for request in admitted:
            before = [other for other in left if rank(other) < rank(request)]
            assert not before, f"{request!r} overtook {before}"
        if admitted:
            returning = [r for r in self._requests if r.state is RequestState.PREEMPTED and not r.queued and r not in step.ended]
            assert not [other for other in returning if rank(other) < max(map(rank, admitted))], "a victim was overtaken before it came back"

    def nobody_gives_way_in_vain(self, moves: list[tuple[str, Any]], outgrown: list[Any]) -> None:
        victims: list[Any] = []
        for what, request in moves:
            if what == "preempt":
                victims.append(request)
                continue
            for victim in victims:
                assert rank(victim) > rank(request), f"{victim!r} gave way to {request!r}"
                if request.num_preemptions == 0 and request.num_output_tokens == 0 and request.state is RequestState.WAITING:
                    assert victim.priority > request.priority
            victims = []
        assert not victims or outgrown, f"{victims} gave way and nobody got anything"

    def the_best_of_those_that_wait_has_no_way_in(self, step: Any) -> None:
        waiting = [r for r in self._requests if r.state is not RequestState.RUNNING and r not in step.ended]
        if not waiting or not step.token_budget or min(waiting, key=rank) not in step.waiting:
            return
        best = min(waiting, key=rank)
        if any(r not in step.rows and rank(r) < rank(best) and r.num_computed_tokens < r.num_known < r.max_known for r in step.resident):
            return  # a better one is short of blocks itself
        lower = [r for r in step.resident if r.priority > best.priority]
        grant, victims = step.schedule(best), step.victims_for(best, lower)
        assert grant.reason in (*ROOM, Reason.NOT_READY, Reason.PREEMPTED, Reason.ENDED), f"{best!r} could have had {grant}"
        assert victims is None or grant.reason not in ROOM, f"{best!r} waits although {lower} run"

    def nobody_is_held_while_worse_ones_enter(self, step: Any, admitted: list[Any]) -> None:
        for r in step.resident:
            if r not in step.rows and r.num_computed_tokens < r.num_known < r.max_known:
                assert not [other for other in admitted if rank(other) > rank(r)], f"{r!r} is held while worse ones enter"


def walk(seed: int) -> int:
    """Requests of random priorities that come, run, fork, are aborted and end. How many gave way."""
    rng = random.Random(seed)
    num_blocks, depth = rng.choice((8, 12, 20)), rng.choice((1, 1, 2, 3))
    bare = Bare(
        Judged(),
        stack=PlainPrefixCache(FreeList(num_blocks)) if rng.random() < 0.5 else None,
        num_blocks=num_blocks,
        max_num_seqs=rng.choice((1, 3, 4, 8)),
        budget=rng.choice((2, 6, 12, 40)),
        watermark_blocks=rng.choice((0, 0, 1, 3)),
        long_prefill_token_threshold=rng.choice((0, 0, 4)),
        max_draft_tokens=rng.choice((0, 0, 2)),
    )
    scheduler, flights = bare.scheduler, []
    arrivals, num_steps = rng.randint(3, 14), 0
    while arrivals or scheduler.groups:
        if arrivals and rng.random() < 0.4:
            arrivals -= 1
            n = min(rng.choice((1, 1, 1, 2, 4)), scheduler.limits.max_num_seqs)
            length = rng.randint(1, 4 * num_blocks - 8)
            bare.add([rng.randrange(2) for _ in range(length)], max_tokens=rng.choice((1, 3, 9, 20)), n=n, priority=rng.choice((-1, 0, 0, 5)))
        if scheduler.groups and rng.random() < 0.03:
            scheduler.end(rng.choice(sorted(scheduler.groups)), sample=None, reason="abort")
        if rows := bare.schedule():
            flights.append(rows)
        if flights and (len(flights) >= depth or not rows):
            bare.commit(flights.pop(0), rng.randrange(2))
        num_steps += 1
        assert num_steps < 3000, "no end in sight"
    for rows in flights:
        bare.commit(rows)
    assert list(scheduler.audit()) == []
    assert not [told for told in scheduler.planner.reported if "policy" in told], scheduler.planner.reported
    assert not scheduler.planner.policy._requests
    return scheduler.counts.num_preemptions


def test_the_promises_hold_after_every_plan() -> None:
    assert sum(walk(seed) > 0 for seed in range(150)) > 40


def running(bare: Bare) -> list[Any]:
    return [r for r in bare.scheduler.step.resident if r.state is RequestState.RUNNING]


@pytest.fixture
def full() -> Bare:
    """Two seats, taken by priorities 3 and 5, and blocks in abundance."""
    bare = Bare(Judged(), max_num_seqs=2)
    bare.add(3, priority=3)
    bare.add(3, priority=5)
    bare.step()
    return bare


def test_the_more_urgent_takes_the_seat_of_the_least_urgent(full: Bare) -> None:
    three, five = running(full)
    urgent = full.add(3, priority=4)
    assert [row.request for row in full.step()] == [three, urgent]
    assert five.state is RequestState.PREEMPTED
    full.run()
    assert urgent.group.finish_reason == five.group.finish_reason == "length"


@pytest.mark.parametrize("priority", [5, 6])
def test_equals_and_the_less_urgent_wait(full: Bare, priority: int) -> None:
    late = full.add(3, priority=priority)
    full.step()
    assert late.state is RequestState.WAITING
    full.run()
    assert full.scheduler.counts.num_preemptions == 0


def test_a_victim_keeps_its_place_among_its_equals(full: Bare) -> None:
    three, five = running(full)
    late = full.add(3, priority=5)
    full.add(3, priority=0, max_tokens=2)
    full.step()
    assert five.state is RequestState.PREEMPTED
    while five.state is not RequestState.RUNNING:
        assert late.state is RequestState.WAITING
        full.step()
    assert three.num_preemptions == 0
    full.run()


def test_who_gave_way_does_not_come_back_before_there_is_room(full: Bare) -> None:
    """No bouncing: one preemption for one arrival, however long it stays."""
    full.add(3, priority=0, max_tokens=30)
    full.run()
    assert full.scheduler.counts.num_preemptions == 1


@pytest.mark.parametrize("n", [2, 3])
def test_all_seats_of_n_samples_are_made_free_or_none(n: int) -> None:
    bare = Bare(Judged(), max_num_seqs=3)
    requests = [bare.add(3, priority=p) for p in (0, 7, 9)]
    bare.step()
    leader = bare.add(3, priority=5, n=n)
    bare.step()
    assert [r.state is RequestState.RUNNING for r in requests] == ([True, False, False] if n == 2 else [True] * 3)
    assert (leader.state is RequestState.RUNNING) == (n == 2)
    bare.run()


def test_nobody_gives_way_when_all_together_would_not_be_enough() -> None:
    bare = Bare(Judged(), num_blocks=12)
    bare.add(32, priority=0, max_tokens=3)
    small = [bare.add(4, priority=9, max_tokens=3) for _ in range(2)]
    bare.step()
    big = bare.add(17, priority=1)  # five blocks; two are free, and four when both are gone
    bare.step()
    assert big.state is RequestState.WAITING
    assert [r.num_preemptions for r in small] == [0, 0]
    bare.run()


def test_no_more_give_way_than_are_needed_and_the_useless_are_spared() -> None:
    bare = Bare(Judged(), num_blocks=12, max_num_seqs=8)
    bare.add(8, priority=0)
    large, little = bare.add(26, priority=8), bare.add(2, priority=9)
    bare.step()
    big = bare.add(17, priority=1)  # five blocks; one is free: the little one is the least urgent, and makes no difference
    bare.step()
    assert big.state is RequestState.RUNNING
    assert [r.num_preemptions for r in (large, little)] == [1, 0]
    bare.run()


def test_the_watermark_is_kept_by_those_who_give_way() -> None:
    bare = Bare(Judged(), num_blocks=10, watermark_blocks=3)
    bare.add(4, priority=0, max_tokens=3)
    low = bare.add(16, priority=9, max_tokens=2)
    bare.step()
    high = bare.add(8, priority=1)  # two of four free blocks would leave less than three
    bare.step()
    assert (high.state, low.state) == (RequestState.RUNNING, RequestState.PREEMPTED)
    bare.run()


def test_what_a_victim_was_granted_in_the_step_goes_back() -> None:
    """Everybody decodes before the urgent one is looked at; the budget of four is spent again after one gave way."""
    bare = Bare(Judged(), max_num_seqs=3, budget=4)
    requests = [bare.add(1, priority=p) for p in (5, 1, 9)]
    bare.step()
    urgent = bare.add(2, priority=0)
    rows = bare.schedule()
    assert [(row.request, row.num_tokens) for row in rows] == [(requests[1], 1), (requests[0], 1), (urgent, 2)]
    assert bare.scheduler.step.token_budget == 0
    bare.commit(rows)
    bare.run()


def test_the_least_urgent_gives_way_to_one_that_grows() -> None:
    """Priorities 5, 1, 9 in a full pool, each in want of a block: 9 gives way, whatever the order in which they are asked."""
    bare = Bare(Judged(), num_blocks=4)
    five, one, nine = [bare.add(4, priority=p) for p in (5, 1, 9)]
    bare.step()
    rows = bare.schedule()
    assert {row.request for row in rows} == {five, one}
    assert nine.state is RequestState.PREEMPTED
    assert sum(row.num_tokens for row in rows) + bare.scheduler.step.token_budget == 64
    bare.commit(rows)
    bare.run()


def test_one_without_a_block_keeps_what_it_has() -> None:
    """The least urgent finds no block: it waits with its blocks, is not computed again, and goes on when one is free."""
    bare = Bare(Judged(), num_blocks=3)
    bare.add(6, priority=0, max_tokens=2)
    held = bare.add(4, priority=1, max_tokens=3)
    bare.run()
    assert held.num_preemptions == 0
    assert bare.work == {"r0": 7, "r1": 4 + 2}


def test_a_long_prompt_of_low_priority_leaves_the_budget_to_the_urgent() -> None:
    bare = Bare(Judged(), num_blocks=64, budget=10)
    low = bare.add(100, priority=9, max_tokens=1)
    bare.step()
    urgent = bare.add(15, priority=0, max_tokens=2)
    assert [(row.request, row.num_tokens) for row in bare.step()] == [(urgent, 10)]
    assert [(row.request, row.num_tokens) for row in bare.step()] == [(urgent, 5), (low, 5)]
    assert [(row.request, row.num_tokens) for row in bare.step()] == [(urgent, 1), (low, 9)]
    bare.run()
    assert bare.scheduler.counts.num_preemptions == 0


def test_nobody_gives_way_for_budget_alone() -> None:
    bare = Bare(Judged(), max_num_seqs=8, budget=4)
    low = [bare.add(1, priority=9) for _ in range(3)]
    bare.step()
    urgent = [bare.add(1, priority=0) for _ in range(2)]
    assert [row.request for row in bare.step()] == [*low, urgent[0]]
    assert bare.scheduler.counts.num_preemptions == 0
    bare.run()


def test_an_allocator_that_breaks_its_word_stops_nobody_for_long() -> None:
    rng = random.Random(0)
    bare = Bare(Priority(), stack=Unreliable(FreeList(12), lambda: rng.random() < 0.2), num_blocks=12)
    for number in range(12):
        bare.add(rng.randint(1, 20), priority=number % 3, max_tokens=12)
    bare.run()
    assert bare.scheduler.counts.num_preemptions
    assert bare.scheduler.planner.reported - {"outgrown"} == {"broken word: take"}


def test_a_block_that_is_promised_and_not_given_is_not_waited_for() -> None:
    class Refusing(FreeList):
        refuses = False

        def take(self, count: int) -> Any:
            return None if self.refuses else super().take(count)

    stack = Refusing(12)
    bare = Bare(Priority(), stack=stack, num_blocks=12)
    grows, late = bare.add(4), bare.add(3)
    bare.step()
    stack.refuses = True
    assert [row.request for row in bare.step()] == [late]
    stack.refuses = False
    assert grows in [row.request for row in bare.step()]
    bare.run()


def test_a_budget_below_the_next_token_of_all_goes_by_rank() -> None:
    bare = Bare(Judged(), max_num_seqs=4, budget=2)
    low = [bare.add(1, priority=9, max_tokens=20) for _ in range(2)]
    bare.step()
    urgent = bare.add(3, priority=0, max_tokens=2)
    assert [row.request for row in bare.step()] == [urgent]
    assert [row.request for row in bare.step()] == [urgent, low[0]]
    bare.run()


def test_nobody_is_admitted_before_a_victim_in_flight_has_come_back() -> None:
    bare = Bare(Judged(), max_num_seqs=1)
    low = bare.add(3, priority=5, max_tokens=9)
    flights = [bare.schedule()]
    urgent, lower = bare.add(3, priority=0, max_tokens=1), bare.add(3, priority=6)
    flights.append(bare.schedule())
    assert [row.request for row in flights[1]] == [urgent]
    bare.scheduler.end("r1", sample=None, reason="abort")  # its seat is free, and the victim's token is still on its way
    assert bare.schedule() == []
    bare.commit(flights[0])
    bare.commit(flights[1])
    assert [row.request for row in bare.step()] == [low]
    assert lower.state is RequestState.WAITING
    bare.run()


def test_nobody_looks_for_the_prefix_of_one_for_whom_nobody_would_give_way() -> None:
    """Among equals the head of the line waits for a seat; looking its long prompt up in every step would be for nothing."""

    class Counting(PlainPrefixCache):
        num_found = 0

        def find(self, query: Any) -> Any:
            self.num_found += 1
            return super().find(query)

    stack = Counting(FreeList(32))
    bare = Bare(Priority(), stack=stack, max_num_seqs=1)
    bare.add(9)
    bare.step()
    late, num_found = bare.add(13), stack.num_found
    for _ in range(5):
        bare.step()
    assert stack.num_found == num_found
    assert late.state is RequestState.WAITING
    bare.run()


def test_equals_are_served_as_they_came_under_a_stream_of_the_urgent() -> None:
    bare = Bare(Judged(), max_num_seqs=2)
    equals = [bare.add(3, priority=5, max_tokens=3) for _ in range(4)]
    ended: list[Any] = []
    for step in range(60):
        if step % 2 == 0:
            bare.add(2, priority=0, max_tokens=1)
        bare.step()
        ended += [r for r in equals if r.state is RequestState.FINISHED and r not in ended]
    assert ended == equals
    bare.run()

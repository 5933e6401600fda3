"""Parked requests in rare states: aborted wherever they stand, with rows in flight that fault or are rejected, in the middle of a prompt, forked."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from bare import Bare
from corekit_cpu_swap.layer import CpuSwap
from forced import Book, Forced, Move, everyone, finish, forced_world, live
from test_engine_room import Asking
from test_engine_scheduler import Scripted
from world import Setting, World

from corekit.api import Blocks, Reason, RequestState
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.engine.blocks import CopyJournal
from corekit.testing.prefix_cache import PlainPrefixCache

SWAPPING = ("swap", "lru+swap")
LOST = (RequestState.PREEMPTED, RequestState.PARKED)

# -- aborts

STATES: dict[str, Callable[[Any], bool]] = {
    "waiting": lambda r: r.state is RequestState.WAITING and r.queued,
    "running": lambda r: r.state is RequestState.RUNNING and not r.steps_in_flight,
    "running with rows in flight": lambda r: r.state is RequestState.RUNNING and r.steps_in_flight > 0,
    "preempted": lambda r: r.state is RequestState.PREEMPTED and r.queued,
    "preempted with rows in flight": lambda r: r.state is RequestState.PREEMPTED and r.steps_in_flight > 0,
    "parked": lambda r: r.state is RequestState.PARKED and r.queued,
    "parked with rows in flight": lambda r: r.state is RequestState.PARKED and r.steps_in_flight > 0,
    "parked before its fork": lambda r: r.state is RequestState.PARKED and r.num_samples > 1,
    "awaits a prefix": lambda r: r.awaits is not None,
}


def busy(stack: str, depth: int, at: int, turn: int) -> World:
    """Some of one prefix, some of another, one of two samples, on three seats; at one step everybody has to go, half of them to the host."""

    def move(step: Any) -> None:
        for which, r in enumerate(list(step.resident)):
            step.preempt(r, ("recompute", "swap")[(which + turn) % 2])

    world = forced_world(Setting(stack=stack, depth=depth, num_blocks=24, max_num_seqs=4, max_num_batched_tokens=9), {at: move})
    for prompt, n in (([*range(11)], 2), ([*range(16), 1], 1), ([3, 4, 5], 1), ([*range(16), 2], 1)):
        world.ask(prompt, max_tokens=4, n=n, temperature=float(n > 1))
    return world


@pytest.mark.parametrize(("stack", "state"), [(stack, state) for stack in SWAPPING for state in STATES if stack == "lru+swap" or state != "awaits a prefix"])
def test_an_abort_gives_everything_back_in_every_state(stack: str, state: str) -> None:
    """Whoever is in that state first is aborted, all of it or one sample; everybody else answers as ever."""
    met = 0
    for at, turn in itertools.product(range(1, 6), (1, 0)):
        world = busy(stack, 1 if state == "running" else 3, at, turn)
        while not world.engine.idle:
            world.step()
            if found := [r for r in live(world) if STATES[state](r)]:
                met += 1
                world.abort(found[-1].group.asked.request_id, found[-1].sample if met % 2 else None)
                break
        finish(world)
        if met == 2:
            return
    raise AssertionError(f"nobody was {state} more than {met} times")


# -- rows in flight of those who are parked


def watch(world: World, seen: Callable[[Any, int], bool]) -> int:
    """Run to the end; how often `seen(request, computed before)` held for somebody parked: at a commit, or between steps."""
    count, commit = 0, world.scheduler.commit

    def watched(rows: Any, result: Any) -> None:
        nonlocal count
        parked = {r: r.num_computed_tokens for r in live(world) if r.state is RequestState.PARKED}
        commit(rows, result)
        count += sum(seen(r, before) for r, before in parked.items())

    world.scheduler.commit = watched  # type: ignore[method-assign]
    while not world.engine.idle:
        world.step()
        count += sum(seen(r, r.num_computed_tokens) for r in live(world) if r.state is RequestState.PARKED)
        assert world.num_steps < 500
    finish(world)
    return count


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("stack", SWAPPING)
def test_guesses_in_flight_are_taken_off_a_parked_request(stack: str, depth: int) -> None:
    rejected = 0
    for at in range(1, 9):
        world = forced_world(Setting(stack=stack, depth=depth, max_draft_tokens=3, num_blocks=24), {at: everyone("swap")}, late=at % 2 == 0)
        for first in range(3):
            world.ask([first, 5, 9], max_tokens=14)
        rejected += watch(world, lambda r, before: r.num_computed_tokens < before)
    assert rejected > 2


@pytest.mark.parametrize("stack", SWAPPING)
def test_a_row_in_flight_may_fault_while_its_request_is_parked(stack: str) -> None:
    faults = 0
    for at in range(1, 5):
        world = forced_world(Setting(stack=stack, depth=3, num_blocks=24, max_num_batched_tokens=8), {at: everyone("swap")})
        world.ask(range(9), faulty=True)
        world.ask([1, 2, 3], max_tokens=5)
        faults += watch(world, lambda r, before: r.state is RequestState.FINISHED and r.group.finish_reason == "error")
    assert faults


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("stack", SWAPPING)
def test_logprobs_of_a_prompt_that_was_parked_in_its_middle(stack: str, depth: int) -> None:
    """They come whole and in their places; what was computed before is not computed again."""
    middle = 0
    for at in range(1, 6):
        world = forced_world(Setting(stack=stack, depth=depth, num_blocks=24, max_num_batched_tokens=6), {at: everyone("swap")})
        book = Book.of(world)
        world.ask(range(3, 22), max_tokens=3, prompt_logprobs=2)
        world.ask(range(3, 12), max_tokens=3)
        middle += watch(world, lambda r, before: r.group.prompt_logprobs is not None and 0 < before < r.num_prompt_tokens)
        assert book.num_tokens == (19 + 2) + (9 + 2) - world.engine.stats().num_cached_tokens
    assert middle


# -- siblings


@pytest.mark.parametrize("stack", SWAPPING)
def test_eight_siblings_park_their_prompt_once_where_keys_tell_that_it_is_one(stack: str) -> None:
    """A prompt of four blocks, and then a block of each one's own. Without keys nobody knows that two blocks are one."""
    for at, own in ((1, 0), (2, 8), (3, 8)):
        world = forced_world(Setting(stack=stack, num_blocks=40), {at: everyone("swap")})
        world.ask(range(16), n=8, temperature=1.0, seed=5, max_tokens=5)
        parked = 0
        while not world.engine.idle:
            world.step()
            memory = world.scheduler.blocks.stats()
            parked = max(parked, memory.num_host_used - memory.num_host_cached)
        finish(world)
        assert world.engine.stats().num_swap_preemptions == 8
        assert parked == (4 if stack == "lru+swap" else 8 * 4) + own


@pytest.mark.parametrize("stack", SWAPPING)
def test_siblings_of_a_leader_that_is_parked_begin_anew(stack: str) -> None:
    """The leader is parked while the step that forks it is in flight: there is nothing on the device to share with it."""
    forked = 0
    for at in (1, 2):
        world = forced_world(Setting(stack=stack, depth=3, num_blocks=40, max_num_batched_tokens=16), {at: everyone("swap")})
        world.ask([*range(20), 3], n=4, temperature=1.0, max_tokens=6)
        while not world.engine.idle:
            world.step()
            forked += [r.state for r in live(world)] == [RequestState.PARKED, *[RequestState.PREEMPTED] * 3]
        finish(world)
    assert forked


# -- room to return


def swapping(*plans: Move, num_blocks: int, **limits: Any) -> Bare:
    journal = CopyJournal()
    stack = CpuSwap(FreeList(num_blocks), journal, num_slots=64, max_cached=0)
    return Bare(Scripted(*plans), journal=journal, stack=stack, num_blocks=num_blocks, **limits)


@pytest.mark.parametrize(("num_blocks", "watermark", "reason"), [(6, 0, Reason.BLOCKS), (8, 2, Reason.WATERMARK)])
def test_room_is_counted_for_the_whole_ticket(num_blocks: int, watermark: int, reason: Reason) -> None:
    """Guesses in flight took a third block, and were rejected: what was parked is still three blocks, though its tokens fit in two."""

    def give_way(step: Any) -> None:
        step.preempt(parked, "swap")
        assert step.schedule(other)

    def ask(step: Any) -> None:
        found.append((step.victims_for(parked, [other]), step.schedule(parked).reason))

    found: list[Any] = []
    bare = swapping(Fcfs().plan, Fcfs().plan, give_way, ask, num_blocks=num_blocks, max_draft_tokens=3, watermark_blocks=watermark)
    parked = bare.add(5)
    bare.step()
    guesses = bare.schedule()
    other = bare.add(13, max_tokens=4)
    rows = bare.schedule()
    bare.commit(guesses)
    bare.commit(rows)
    assert (parked.num_computed_tokens, len(parked.tokens), parked.num_parked_blocks) == (6, 7, 3)
    bare.step()
    assert found == [([other], reason)]
    bare.run()


@pytest.mark.parametrize("late", [False, True])
def test_what_was_parked_is_neither_computed_again_nor_passed_over(late: bool) -> None:
    """Also when the row that it had got in that step is undone."""
    for at in range(1, 8):
        journal = CopyJournal()
        stack = CpuSwap(FreeList(16), journal, num_slots=16, max_cached=0)
        bare = Bare(Forced({at: everyone("swap"), at + 2: everyone("swap")}, late=late), journal=journal, stack=stack, num_blocks=16, budget=6)
        r, position = bare.add(15, max_tokens=6), 0
        while bare.scheduler.groups:
            for row in bare.step():
                assert row.start == position
                position += row.num_tokens
        assert position == 15 + 5
        assert r.num_preemptions
        assert list(bare.scheduler.audit()) == []


def test_all_that_was_computed_is_parked_and_what_has_committed_under_its_keys() -> None:
    """Full blocks whose row is in flight are parked as well, but a fault may still come of it: nobody may find them."""
    journal, asked = CopyJournal(), []

    class Spy(CpuSwap):
        def swap_out(self, blocks: Blocks, keys: Any) -> Any:
            asked.append((blocks.ids, tuple(keys)))
            return super().swap_out(blocks, keys)

    stack = Spy(PlainPrefixCache(FreeList(16)), journal, num_slots=16, max_cached=0)
    bare = Bare(Scripted(Fcfs().plan, Fcfs().plan, everyone("swap")), journal=journal, stack=stack, num_blocks=16, budget=9)
    r = bare.add(30)
    bare.step()
    rows, table = bare.schedule(), tuple(r.table)
    bare.schedule()
    assert asked == [(table[:5], (*r.keys[:2], None, None, None))]
    bare.commit(rows)
    bare.run()


def test_who_is_named_makes_room_for_those_who_are_parked() -> None:
    """As for those that compute again: on random walks, against the moves themselves."""
    seen: dict[str, int] = {}
    for seed in range(24):
        rng, journal = random.Random(seed), CopyJournal()
        asking, num_blocks = Asking(rng), rng.choice((7, 16))
        inner = PlainPrefixCache(FreeList(num_blocks)) if seed % 2 else FreeList(num_blocks)
        bare = Bare(
            asking,
            journal=journal,
            stack=CpuSwap(inner, journal, num_slots=rng.choice((3, 64)), max_cached=64),
            num_blocks=num_blocks,
            max_num_seqs=rng.choice((2, 8)),
            budget=rng.choice((3, 12, 40)),
            watermark_blocks=rng.choice((0, 2)),
            preemption="swap",
            max_draft_tokens=3 * (seed % 3 == 0),
        )
        flights = []
        for _ in range(24):
            if len(bare.scheduler.groups) < 5:
                bare.add([rng.randrange(2) for _ in range(rng.randint(1, 24))], max_tokens=rng.randint(1, 20), n=rng.choice((1, 1, 2)))
            if rows := bare.schedule():
                flights.append(rows)
            if flights and (len(flights) > 2 or rng.random() < 0.5 or not rows):
                bare.commit(flights.pop(0), rng.randrange(2))
        assert not [told for told in bare.scheduler.planner.reported if "raised" in told], bare.scheduler.planner.reported
        for kind, count in asking.seen.items():
            seen[kind] = seen.get(kind, 0) + count
    assert min(seen.values()) > 8, seen

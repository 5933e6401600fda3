"""Preempted at every step, by swap and by recompute: the answers stay, and both pools are whole in the end."""

from __future__ import annotations

import random
from typing import Any

import pytest
from forced import Always, Forced, Move, everyone, finish, forced_world, live, nth
from world import Setting, World

from corekit.api import RequestState, plan_in_order
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.priority import Priority

STACKS = ("free-list", "lru", "swap", "lru+swap")
SWAPPING = ("swap", "lru+swap")
LOST = (RequestState.PREEMPTED, RequestState.PARKED)
ROOMY = {"num_blocks": 24, "max_num_batched_tokens": 16}


def ask_three(world: World) -> None:
    """A shared prefix, a fork that copies its half block, draws by seed, and chunks."""
    world.ask([*range(8), 41], max_tokens=4)
    world.ask([*range(8), 42, 43], max_tokens=4, n=2, temperature=1.0, seed=3)
    world.ask([5, 6, 7], max_tokens=5)


def two(swapped: int, again: int) -> Move:
    """One resident parks, another is computed again."""

    def move(step: Any) -> None:
        victims = [(r, mode) for at, mode in ((swapped, "swap"), (again, "recompute")) for r in step.resident[at : at + 1]]
        for r, mode in victims:
            step.preempt(r, mode)

    return move


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("stack", STACKS)
def test_whoever_gives_way_at_whatever_step_answers_the_same(stack: str, depth: int) -> None:
    """Every request at every step, once by either mode (a stack that cannot swap computes again in both)."""
    at, num_steps, parked, total = 0, 1, 0, 0
    while at < num_steps:
        for which in range(4) if stack in SWAPPING else (0, 2):
            world = forced_world(Setting(stack=stack, depth=depth, **ROOMY), {at: two(which, (which + 1) % 4)}, late=(at + which // 2) % 2 == 0)
            ask_three(world)
            finish(world)
            stats = world.engine.stats()
            parked, total = parked + stats.num_swap_preemptions, total + stats.num_preemptions
        at, num_steps = at + 1, world.num_steps
    assert at > 5
    assert total > 12
    assert (parked > 9) == (stack in SWAPPING), (parked, total)


CROWDS = [(stack, mode, hosts) for stack in SWAPPING for mode, hosts in (("swap", 0), ("swap", 2), ("swap", 64), (None, 64))]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("stack", "mode", "num_host_blocks"), [("free-list", "swap", 0), ("lru", "swap", 0), *CROWDS])
def test_all_give_way_at_once_whatever_the_size_of_the_host(stack: str, mode: Any, num_host_blocks: int, depth: int) -> None:
    parked = refused = 0
    for first in range(3):
        moves = {at: everyone(mode) for at in range(first, 99, 3)}
        world = forced_world(Setting(stack=stack, depth=depth, num_host_blocks=num_host_blocks, **ROOMY), moves)
        ask_three(world)
        finish(world)
        parked, refused = parked + world.engine.stats().num_swap_preemptions, refused + world.engine.stats().num_swap_refusals
    assert bool(parked) == (num_host_blocks > 0)
    assert bool(refused) == (num_host_blocks == 2)


# -- twelve requests, one of eight samples, in a pool for a few


def ask_twelve(world: World) -> None:
    rng = random.Random(5)
    for number in range(12):
        prompt = [*range(6 if number % 3 else 2), *(rng.randrange(50) for _ in range(4))]
        world.ask(prompt, max_tokens=7, n=8 if number == 4 else 1, temperature=float(number % 2), seed=number, priority=number % 2)


TIGHT = {"num_blocks": 20, "num_host_blocks": 64, "preemption": "swap", "max_num_seqs": 9}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("stack", SWAPPING)
def test_a_tiny_pool_with_swap_never_stops(stack: str, depth: int) -> None:
    """One request is swapped out at every fourth step, beside those that have to be; the four worlds together meet every step index."""
    parked = returned = 0
    for first in range(4):
        moves = {at: nth(at // 4 % 5, "swap") for at in range(first, 999, 4)}
        world = forced_world(Setting(stack=stack, depth=depth, **TIGHT), moves)
        ask_twelve(world)
        finish(world)
        stats = world.engine.stats()
        parked, returned = parked + stats.num_swap_preemptions, returned + stats.num_bytes_to_device
    assert parked > 20
    assert returned > 5


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("stack", SWAPPING)
def test_a_tiny_pool_survives_one_swap_at_any_step(stack: str, depth: int) -> None:
    at, num_steps = 0, 1
    while at < num_steps:
        world = forced_world(Setting(stack=stack, depth=depth, **TIGHT), {at: everyone("swap")})
        ask_twelve(world)
        finish(world)
        at, num_steps = at + 1, world.num_steps
    assert at > 20


# -- who comes back first


class InOrder(Fcfs):
    """The same promise by the words of the api."""

    def plan(self, step: Any) -> None:
        plan_in_order(step, admit=lambda r: r.arrival)


@pytest.mark.parametrize("policy", [Fcfs, InOrder, Priority])
@pytest.mark.parametrize("depth", [1, 2])
def test_who_is_parked_returns_before_anybody_new(policy: Any, depth: int) -> None:
    """Equals by priority, each with a prefix of its own: those that wait for another's prefix have a place of their own in line."""

    def judge(step: Any) -> None:
        new = [r for r in step.admitted if r.state is RequestState.RUNNING and not r.num_preemptions]
        held = [r for r in live(world) if r.num_preemptions and r.state in LOST and r not in step.preempted]
        assert not (new and held), f"{new} came before {held}"
        seen.append(bool(held or [r for r in step.admitted if r.num_preemptions]) and len(step.waiting) > 1)

    seen: list[bool] = []
    world = World(Setting(stack="lru+swap", depth=depth, num_blocks=10, preemption="swap", max_num_seqs=4))
    planner = world.scheduler.planner
    planner.policy = policy()
    planner._accounting = planner.policy if policy is Priority else None
    swapping = Forced({at: nth(at % 3, "swap") for at in range(1, 999, 3)}, planner.policy)
    planner.policy = Forced(Always(judge), swapping, late=True)
    for number in range(9):
        world.ask([number, *range(number % 3 * 5)], max_tokens=9)
    finish(world)
    assert sum(seen) > 5
    assert world.engine.stats().num_swap_preemptions > 5

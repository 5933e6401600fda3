"""A policy that does as it is told at chosen plans and otherwise plans as another; what moves are told with; and worlds that run under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from world import Setting, World

from corekit.api import PreemptMode, RequestState, RequestStats, StepStats
from corekit.builtin.fcfs import Fcfs

Move = Callable[[Any], None]


class Forced:
    """`moves[i]` is called in plan i, with the step: before the policy plans it, or after it (`late`), when rows have to be undone."""

    def __init__(self, moves: Mapping[int, Move], policy: Any = None, *, late: bool = False) -> None:
        self.moves = moves
        self.policy = policy or Fcfs()
        self.late = late
        self.number = -1
        self.num_moves = 0

    def plan(self, step: Any) -> None:
        self.number += 1
        if self.late:
            self.policy.plan(step)
        if (move := self.moves.get(self.number)) is not None and step.resident:
            self.num_moves += 1
            move(step)
        if not self.late:
            self.policy.plan(step)


class Always(dict):
    """The same move in every plan."""

    def __init__(self, move: Move) -> None:
        self.move = move

    def get(self, number: int, default: object = None) -> Move:  # type: ignore[override]
        return self.move


def nth(which: int, mode: PreemptMode | None) -> Move:
    """Preempt one resident; nobody if there are not so many."""

    def move(step: Any) -> None:
        if which < len(step.resident):
            step.preempt(step.resident[which], mode)

    return move


def everyone(mode: PreemptMode | None) -> Move:
    def move(step: Any) -> None:
        for r in list(step.resident):
            step.preempt(r, mode)

    return move


def forced_world(setting: Setting, moves: Mapping[int, Move], *, late: bool = False) -> World:
    world = World(setting)
    planner = world.scheduler.planner
    planner.policy = Forced(moves, planner.policy, late=late)  # what the planner tells of requests goes to the inner one as before
    return world


def finish(world: World) -> None:
    """Under the law. That a forced step may schedule nothing is no news."""
    while not world.engine.idle:
        world.step()
        assert world.num_steps < 3000, "no end in sight"
    reported = world.scheduler.planner.reported
    reported -= {told for told in reported if "Forced scheduled nothing" in told}
    world.check()
    memory = world.scheduler.blocks.stats()
    assert memory.num_host_used == memory.num_host_cached, "a ticket is left"


def live(world: World) -> list[Any]:
    """Requests that have not ended, in the order of their making."""
    return [r for group in world.scheduler.groups.values() for r in group.samples if r.state is not RequestState.FINISHED]


class Book:
    """An observer that keeps everything. `of(world)` opens one."""

    def __init__(self) -> None:
        self.steps: list[StepStats] = []
        self.requests: list[RequestStats] = []

    @classmethod
    def of(cls, world: World) -> Book:
        book = cls()
        world.engine._observers.append(book)
        return book

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def on_request(self, stats: RequestStats) -> None:
        self.requests.append(stats)

    @property
    def num_tokens(self) -> int:
        """Positions that were computed."""
        return sum(stats.num_tokens for stats in self.steps)

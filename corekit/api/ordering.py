"""Policies in a line or two: `plan_in_order`, and the order of those that wait, kept from step to step.

Knows requests by their view only. No part has to use this; it makes the usual policy short and quick.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

from .scheduler_policy import Reason, RequestState, RequestView, StepPlan

Key = Callable[[RequestView], Any]
"""What a request is ordered by: anything that compares with its like. The smallest comes first."""

MAX_SINGLE_REMOVALS = 16
"""Beyond so many at once, one pass over the whole order is quicker."""


def plan_in_order(step: StepPlan, *, admit: WaitingOrder | Key, victim: Key | None = None) -> None:
    """Running requests first, then those that wait in the order of `admit`, until one does not fit.

    When blocks run out, the resident with the largest `victim` gives way; None: the one that was admitted last. Nobody is
    admitted in a step that took blocks away, nor before such a victim has come back, and victims come back before new ones.

    A plain key sorts all of `step.waiting` in each step that has a seat: right for keys that change from step to step. For keys
    that hold still, give the WaitingOrder that the policy is or has.
    """
    at = 0
    while (stopped := step.schedule_many(step.running, at)) and stopped.reason is Reason.BLOCKS:
        step.preempt(step.resident[-1] if victim is None else max(reversed(step.resident), key=victim))
        at = stopped.index
    if step.seats and step.token_budget and not (step.preempted or step.num_returning):
        step.schedule_many(admit.now(step) if isinstance(admit, WaitingOrder) else sorted(step.waiting, key=_ranked(admit, victims_first=True)))


class WaitingOrder:
    """Those that wait, by a key; equals by arrival. A policy inherits from it, so that the engine tells it of every request.

    Invariant: after `now(step)` the order holds exactly those in `step.waiting`, and of those that are to come back to it
    (victims, and who awaits a prefix) the ones that it was told of. A key is read when a request begins to wait, and must not
    change while it waits. A request that has left is not kept.
    """

    def __init__(self, key: Key, *, victims_first: bool = True) -> None:
        """victims_first: who gave way (or is parked) comes before who never ran, whatever the key says."""
        self._rank = _ranked(key, victims_first=victims_first)
        self._ranks: dict[int, Any] = {}  # by request id
        self._sorted: list[Any] = []  # ranks; the last part of one is the id
        self._requests: list[RequestView] = []  # beside `_sorted`

    def on_arrive(self, request: RequestView) -> None:
        self.add(request)  # a sibling, which begins on a seat that its leader reserved, is dropped by `now`

    def on_progress(self, request: RequestView, prompt_tokens: int, output_tokens: int) -> None:
        """Changes nothing: a key holds still while its request waits."""

    def on_leave(self, request: RequestView) -> None:
        if request.id in self._ranks:
            self._remove(request)

    def add(self, request: RequestView) -> None:
        """Take its place now: for a victim that has to be passed in the step that made it one. Nothing when it has one."""
        if request.id not in self._ranks:
            rank = self._ranks[request.id] = self._rank(request)
            at = bisect_left(self._sorted, rank)
            self._sorted.insert(at, rank)
            self._requests.insert(at, request)

    def now(self, step: StepPlan) -> Sequence[RequestView]:
        """All that wait, in order: `step.waiting`, and victims that have not come back to it where the order was told of them.

        Live: `add` changes it. Costs a look at those that run; those that wait are looked at only when somebody is missing.
        """
        self._drop([request for request in step.running if request.id in self._ranks])
        num_waiting = len(step.waiting) + step.num_returning + step.num_awaiting
        if len(self._requests) != num_waiting or (step.waiting and step.waiting[-1].id not in self._ranks):
            self._drop([request for request in self._requests if request.state is RequestState.FINISHED])
            for request in step.waiting:
                self.add(request)
        return self._requests

    def _drop(self, requests: Sequence[RequestView]) -> None:
        if len(requests) <= MAX_SINGLE_REMOVALS:
            for request in requests:
                self._remove(request)
            return
        for request in requests:
            del self._ranks[request.id]
        kept = [rank[-1] in self._ranks for rank in self._sorted]
        self._sorted, self._requests = list(compress(self._sorted, kept)), list(compress(self._requests, kept))

    def _remove(self, request: RequestView) -> None:
        at = bisect_left(self._sorted, self._ranks.pop(request.id))
        del self._sorted[at], self._requests[at]


def _ranked(key: Key, *, victims_first: bool) -> Key:
    """The key, with all that decides between equals."""

    def rank(request: RequestView) -> tuple[bool, Any, int, int]:
        return victims_first and request.state is RequestState.WAITING, key(request), request.arrival, request.id

    return rank

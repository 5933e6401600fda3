"""Lower numbers first, equals as they came; who waits takes the place of who is less urgent. Knows requests by their view only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile

from corekit.api import PASSED_OVER, Reason, RequestState, RequestView, StepPlan, WaitingOrder


def rank(request: RequestView) -> tuple[int, int, int]:
    return request.priority, request.arrival, request.id


class Priority(WaitingOrder):
    """Nobody is admitted before one of a lower rank that waits or just gave way, and nobody gives way in vain.

    The next token of those that answer comes first, as long as the budget has more than that; prompts share the rest in order.
    """

    def __init__(self) -> None:
        super().__init__(lambda request: request.priority, victims_first=False)

    def plan(self, step: StepPlan) -> None:
        waiting, running = self.now(step), sorted(step.running, key=rank)
        turn = Turn(self, step, running)
        if len(running) < step.token_budget:
            turn.decode()
        else:  # not enough for everybody's next token: rank decides about that too
            turn.rest.extend(running)
        turn.go_on(waiting)


class Turn:
    """One step. `running`: those that ran when it began, by rank; victims come from its end."""

    def __init__(self, order: WaitingOrder, step: StepPlan, running: list[RequestView]) -> None:
        self._order = order
        self._step = step
        self._running = running
        self.rest: deque[RequestView] = deque()
        """Running requests that still want tokens, by rank."""

    def decode(self) -> None:
        """The next token for everybody who has a prompt behind him. Who finds no block keeps what he has."""
        decodes: list[RequestView] = []
        for request in self._running:
            (self.rest if request.is_prefill else decodes).append(request)
        at = 0
        while (stopped := self._step.schedule_many(decodes, at)) and stopped.reason is Reason.BLOCKS:
            at = stopped.index + (not self._make_room(stopped.request))

    def go_on(self, waiting: Sequence[RequestView]) -> None:
        """Unfinished prompts and admissions in one line. Victims take their place in `waiting` at once: behind who is asked."""
        at = 0
        while at < len(waiting):
            if self.rest and rank(self.rest[0]) < rank(waiting[at]):
                if not self._ask(self.rest.popleft()):
                    break
            elif not self._ask(waiting[at]):
                break
            else:
                at += 1
        for request in self.rest:
            self._ask(request)

    def _ask(self, request: RequestView) -> bool:
        """Give it tokens if there is any way. Whether those behind it may be admitted."""
        reason = self._step.schedule(request).reason
        if reason is None:
            return True
        if reason in PASSED_OVER:  # whoever gave way comes back before anybody behind it is admitted
            return reason is Reason.ENDED or request.state not in (RequestState.PREEMPTED, RequestState.PARKED)
        return reason is not Reason.BUDGET and self._make_room(request) and bool(self._step.schedule(request))

    def _make_room(self, request: RequestView) -> bool:
        """Whether enough of those behind it gave way. Those of its own number do so only for one that runs, the youngest first."""
        behind = list(self._behind(request))
        victims = behind and self._step.victims_for(request, behind)  # without candidates the question would only cost a look-up of its prefix
        for victim in victims or ():
            self._step.preempt(victim)
            self._order.add(victim)
        return bool(victims)  # nobody: there is room, but the allocator broke its word

    def _behind(self, request: RequestView) -> Iterable[RequestView]:
        if request.state is RequestState.RUNNING:
            mine = rank(request)
            return takewhile(lambda other: rank(other) > mine, reversed(self._running))
        return takewhile(lambda other: other.priority > request.priority, reversed(self._running))

"""A small right policy, and broken ones: one fault each, of a kind that an author makes, and the law that must see it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from corekit.api import PASSED_OVER, Provider, Reason, RequestState, RequestView, SchedulerPolicy, StepPlan, WaitingOrder, plan_in_order


class ShortestFirst(WaitingOrder):
    """The right one: the shortest prompt first; who has computed least gives way."""

    def __init__(self) -> None:
        super().__init__(lambda request: request.num_prompt_tokens)

    def plan(self, step: StepPlan) -> None:
        plan_in_order(step, admit=self, victim=lambda request: -request.num_computed_tokens)


class NewOnly:
    """Admits those that never ran, and forgets those that gave way."""

    def plan(self, step: StepPlan) -> None:
        plan_in_order(_Shown(step, [r for r in step.waiting if r.state is RequestState.WAITING]), admit=lambda r: r.arrival)


class FullBatches:
    """Waits until a batch is worth its while."""

    def plan(self, step: StepPlan) -> None:
        waiting = step.waiting if step.running or len(step.waiting) > 1 else ()
        plan_in_order(_Shown(step, waiting), admit=lambda r: r.arrival)


class AnyReason:
    """Takes every refusal for a lack of blocks: a budget that is spent makes requests give way."""

    def plan(self, step: StepPlan) -> None:
        at = 0
        while stopped := step.schedule_many(step.running, at):
            step.preempt(step.resident[-1])
            at = stopped.index
        step.schedule_many(step.waiting)


class TimeSlices:
    """Gives everybody a turn: every fourth step, whoever ran longest gives way when somebody waits."""

    num_plans = 0

    def plan(self, step: StepPlan) -> None:
        self.num_plans += 1
        if step.waiting and step.resident and self.num_plans % 4 == 0:
            step.preempt(step.resident[0])
        at = 0
        while (stopped := step.schedule_many(step.running, at)) and stopped.reason is Reason.BLOCKS:
            step.preempt(step.resident[-1])
            at = stopped.index
        step.schedule_many(step.waiting)


class StopsAtTheFirst:
    """Takes "not ready" for the end of the line."""

    def plan(self, step: StepPlan) -> None:
        for request in step.running:
            while (grant := step.schedule(request)).reason is Reason.BLOCKS and request.state is RequestState.RUNNING:
                step.preempt(step.resident[-1])
            if grant.reason is Reason.NOT_READY:
                return
        if not step.preempted and not step.num_returning:
            step.schedule_many(step.waiting)


class ForgetsTheAbsent:
    """Keeps a line of its own, and takes who is in neither `waiting` nor its own list of victims for gone."""

    def __init__(self) -> None:
        self.line: list[RequestView] = []

    def plan(self, step: StepPlan) -> None:
        if not step.num_returning:
            there = {request.id for request in step.waiting}
            self.line = [request for request in self.line if request.id in there]
        plan_in_order(_Shown(step, self.line), admit=lambda request: request.arrival)
        self.line += [request for request in step.preempted if request not in self.line]

    def on_arrive(self, request: RequestView) -> None:
        self.line.append(request)

    def on_progress(self, request: RequestView, prompt_tokens: int, output_tokens: int) -> None:
        pass

    def on_leave(self, request: RequestView) -> None:
        if request in self.line:
            self.line.remove(request)


class TwoStates:
    """Knows that a victim is PREEMPTED; has not heard of PARKED."""

    def plan(self, step: StepPlan) -> None:
        known = [r for r in step.waiting if r.state in (RequestState.WAITING, RequestState.PREEMPTED)]
        plan_in_order(_Shown(step, known), admit=lambda r: r.arrival)


class ByArrival(WaitingOrder):
    """Keeps those that wait by their arrival, which the samples of a request share."""

    def __init__(self) -> None:
        self.line: dict[int, RequestView] = {}

    def on_arrive(self, request: RequestView) -> None:
        self.line[request.arrival] = request

    def on_leave(self, request: RequestView) -> None:
        self.line.pop(request.arrival, None)

    def plan(self, step: StepPlan) -> None:
        known = [r for r in step.waiting if self.line.get(r.arrival) is r]
        plan_in_order(_Shown(step, known), admit=lambda r: r.arrival)


class CountsProgress(ShortestFirst):
    """Expects that everybody who leaves has got somewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[int, int] = {}

    def on_progress(self, request: RequestView, prompt_tokens: int, output_tokens: int) -> None:
        self.done[request.id] = self.done.get(request.id, 0) + prompt_tokens + output_tokens

    def on_leave(self, request: RequestView) -> None:
        super().on_leave(request)
        del self.done[request.id]


class Lottery:
    """Fair by chance."""

    def plan(self, step: StepPlan) -> None:
        plan_in_order(step, admit=lambda r: random.random())


class Ages:
    """Raises the priority of those that wait, on the request itself."""

    def plan(self, step: StepPlan) -> None:
        for request in step.waiting:
            request.priority -= 1  # type: ignore[misc]
        plan_in_order(step, admit=lambda r: r.priority)


class KeepsThePlan(ShortestFirst):
    """Looks at the last plan when it hears of progress."""

    last: StepPlan | None = None
    short = False

    def plan(self, step: StepPlan) -> None:
        super().plan(step)
        self.last = step

    def on_progress(self, request: RequestView, prompt_tokens: int, output_tokens: int) -> None:
        self.short = self.last is not None and not self.last.free_blocks


class Remembers(ShortestFirst):
    """Keeps a list of whom it has served."""

    def __init__(self) -> None:
        super().__init__()
        self.served: list[RequestView] = []

    def on_leave(self, request: RequestView) -> None:
        super().on_leave(request)
        self.served.append(request)


class CountsByRequest(ShortestFirst):
    """Keeps a count for each request that it has ever seen."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[int] = Counter()

    def on_progress(self, request: RequestView, prompt_tokens: int, output_tokens: int) -> None:
        self.counts[request.id] += output_tokens


class LooksAtItsWatch(ShortestFirst):
    """Sheds what is late, by a clock of its own."""

    def plan(self, step: StepPlan) -> None:
        late = [r for r in step.waiting if r.deadline is not None and r.deadline < time.monotonic()]
        plan_in_order(step, admit=lambda request: (request in late, request.num_prompt_tokens))


class PicksOneByOne:
    """Looks through all that wait for each that it admits."""

    def plan(self, step: StepPlan) -> None:
        at, left = 0, list(step.waiting)
        while (stopped := step.schedule_many(step.running, at)) and stopped.reason is Reason.BLOCKS:
            step.preempt(step.resident[-1])
            at = stopped.index
        while left and step.seats and not step.preempted and not step.num_returning:
            left.remove(best := min(left, key=lambda r: r.num_prompt_tokens))
            if step.schedule(best).reason not in (None, *PASSED_OVER):
                break


class _Shown:
    """A plan that shows some of those that wait."""

    def __init__(self, step: StepPlan, waiting: Sequence[RequestView]) -> None:
        self._step = step
        self.waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


MUTANTS: dict[type, str] = {
    NewOnly: "test_everybody_finishes",
    FullBatches: "test_no_step_is_idle",
    AnyReason: "test_nobody_gives_way_in_vain",
    TimeSlices: "test_work_is_not_thrown_away_for_ever",
    StopsAtTheFirst: "test_what_could_run_runs",
    ForgetsTheAbsent: "test_those_that_await_a_prefix_come_back",
    TwoStates: "test_parked_ones_come_back",
    ByArrival: "test_samples_of_one_request_are_told_apart",
    CountsProgress: "test_aborts_are_survived_in_every_state",
    Lottery: "test_same_history_same_plan",
    Ages: "test_views_are_only_read",
    KeepsThePlan: "test_the_plan_is_used_during_plan_only",
    Remembers: "test_who_left_is_forgotten",
    CountsByRequest: "test_its_memory_does_not_grow",
    LooksAtItsWatch: "test_time_is_that_of_the_step",
    PicksOneByOne: "test_a_plan_looks_at_few",
}


def provider_of(policy: type) -> Provider[SchedulerPolicy]:
    return Provider(name="mutant", api=1, summary="a policy with one fault", build=lambda context, options: policy())

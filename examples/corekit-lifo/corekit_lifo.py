"""Last come, first served, for corekit: the policy and the hook that registers it, in one file.

It is imported whenever corekit looks for plugins, and light enough for that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from corekit.api import BuildContext, Provider, Reason, SchedulerPolicy, StepPlan, WaitingOrder, hookimpl


@dataclass(frozen=True, slots=True, kw_only=True)
class LifoOptions:
    """The keys of [scheduler_policy.options]."""

    patience: float = 10.0
    """Seconds after which a request is served before newer ones, 0..3600."""

    def __post_init__(self) -> None:
        if not 0 <= self.patience <= 3600:
            raise ValueError(f"patience must be a number of seconds from 0 to 3600, got {self.patience}")


class Lifo(WaitingOrder):
    """The newest is admitted first, and nobody waits for ever: who has waited longer than `patience` goes before newer ones."""

    def __init__(self, patience: float) -> None:
        super().__init__(lambda request: -request.arrival)
        self._patience = patience

    def plan(self, step: StepPlan) -> None:
        at = 0
        while (stopped := step.schedule_many(step.running, at)) and stopped.reason is Reason.BLOCKS:
            step.preempt(step.resident[-1])
            at = stopped.index
        if step.preempted or step.num_returning:
            return
        # step.waiting is in the order of arrival: its beginning is overdue
        num_overdue = bisect_left(step.waiting, step.now - self._patience, key=lambda request: request.arrival_time)
        if step.schedule_many(step.waiting[:num_overdue]) is None:
            step.schedule_many(self.now(step))


def build(context: BuildContext, options: LifoOptions) -> SchedulerPolicy:
    return Lifo(options.patience)


LIFO: Provider[SchedulerPolicy] = Provider(
    name="lifo",
    api=1,
    summary="last come, first served, but nobody waits for ever",
    build=build,
    options=LifoOptions,
)


@hookimpl
def corekit_register_scheduler_policies() -> Sequence[Provider[SchedulerPolicy]]:
    return [LIFO]

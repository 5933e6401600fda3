"""First come, first served: running requests first, the youngest gives way. Knows requests by their view only."""

from __future__ import annotations

from corekit.api import Reason, StepPlan


class Fcfs:
    """Nothing new is admitted in a step that took blocks away from someone, nor before such a victim has come back to `waiting`."""

    def plan(self, step: StepPlan) -> None:
        at = 0  # decodes and unfinished prefills first
        while (refusal := step.schedule_many(step.running, at)) and refusal.reason is Reason.BLOCKS:
            step.preempt(step.resident[-1])
            at = refusal.index
        if not step.preempted and not step.num_returning:
            step.schedule_many(step.waiting)

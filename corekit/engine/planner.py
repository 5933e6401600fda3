"""Runs the scheduler policy so that it cannot stop the engine. Knows what a plan looks like from outside; no blocks, no results.

What the policy raises is reported once and the fallback plans in its place. A policy that schedules nothing while something
could run is reported, and replaced for good when nothing finishes for it.
"""

from __future__ import annotations

import logging
import traceback

from corekit.api import SchedulerPolicy, SupportsAccounting

from .request import Request
from .step_plan import Step

log = logging.getLogger(__name__)

MAX_IDLE_PLANS = 100
MAX_REPORTS = 100


class Planner:
    """Invariant: after `plan` something is scheduled, or nothing could be."""

    def __init__(self, policy: SchedulerPolicy, fallback: SchedulerPolicy) -> None:
        self.policy = policy
        self.fallback = fallback
        self.reported: set[str] = set()
        self._accounting = policy if isinstance(policy, SupportsAccounting) else None
        self._num_idle_plans = 0

    def plan(self, step: Step, *, in_flight: bool) -> None:
        name = type(self.policy).__name__
        try:
            self.policy.plan(step)
        except Exception as error:
            if step.fault is not None:
                raise step.fault from error  # it came through plan(), but it is not the policy's
            self.report(f"scheduler policy {name} raised {error!r} at {_place(error)}; first come first served planned the rest of the step")
            log.debug("scheduler policy %s raised", name, exc_info=error)
            self.fallback.plan(step)
        self._judge(step, name, in_flight=in_flight)
        if step.fault is not None:
            raise step.fault  # the policy caught it
        for method in step.broken_words:
            self.report(
                f"block_allocator {step.stack_name} refused {method} although it said that there is room, which is a fault of a layer: run "
                f"`corekit plugins check` on it. What it kept from a request is computed again. More that it does so is not reported",
                kind=f"broken word: {method}",
            )

    def _judge(self, step: Step, name: str, *, in_flight: bool) -> None:
        """A policy that scheduled nothing, although there was something."""
        if step.broken_words or in_flight or step.rows or step.ended or not (step.resident or step.waiting):
            return
        self.fallback.plan(step)
        if step.rows or step.ended or step.preempted:
            self.report(f"scheduler policy {name} scheduled nothing although something could run; first come first served planned the step")
            self._count_idle(name)

    def _count_idle(self, name: str) -> None:
        self._num_idle_plans += 1
        if self._num_idle_plans == MAX_IDLE_PLANS and self.policy is not self.fallback:
            self.report(f"scheduler policy {name} scheduled nothing {MAX_IDLE_PLANS} times while no request finished: first come first served replaces it")
            self.policy, self._accounting = self.fallback, None

    def on_arrive(self, r: Request) -> None:
        self._tell("on_arrive", r)

    def on_progress(self, r: Request, start: int, num_tokens: int, num_new: int) -> None:
        """A row that computed num_tokens positions from start on, and brought num_new tokens."""
        if self._accounting is not None:
            prompt_tokens = 0 if start >= r.num_prompt_tokens else min(num_tokens, r.num_prompt_tokens - start)
            try:  # written out because a thousand of them are a step
                self._accounting.on_progress(r, prompt_tokens, num_new)
            except Exception as error:
                self._report_raised("on_progress", error)

    def on_leave(self, r: Request) -> None:
        self._num_idle_plans = 0
        self._tell("on_leave", r)

    def _tell(self, event: str, r: Request) -> None:
        if self._accounting is not None:
            try:
                getattr(self._accounting, event)(r)
            except Exception as error:
                self._report_raised(event, error)

    def _report_raised(self, event: str, error: Exception) -> None:
        self.report(f"scheduler policy {type(self.policy).__name__} raised {error!r} in {event} at {_place(error)}")

    def report(self, message: str, *, kind: str = "") -> None:
        """Once for each kind (or message), and not without end: a fault that repeats every step must not fill the log."""
        kind = kind or message
        if kind not in self.reported and len(self.reported) < MAX_REPORTS:
            self.reported.add(kind)
            log.warning(message)


def _place(error: Exception) -> str:
    """File and line where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"

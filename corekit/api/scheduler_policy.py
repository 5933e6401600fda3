"""Slot `scheduler_policy` (stable, one): who runs in this step, how much, and who gives way.

The policy writes the step by asking; the core makes every move safe. A bad policy can be slow or unfair. It cannot exceed a
limit, corrupt an answer, leak a block or stop the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol, runtime_checkable

PreemptMode = Literal["recompute", "swap"]


class RequestState(Enum):
    """Where a sample stands. Every state but RUNNING and FINISHED waits."""

    WAITING = "waiting"  # never ran
    RUNNING = "running"  # holds device blocks
    PREEMPTED = "preempted"  # gave its blocks up; is computed again
    PARKED = "parked"  # its blocks lie on the host
    FINISHED = "finished"


class Reason(Enum):
    """Why a request got no tokens."""

    BUDGET = "budget"  # no tokens are left in this step
    SEATS = "seats"  # max_num_seqs requests hold blocks
    BLOCKS = "blocks"  # the pool is exhausted; a victim would help
    WATERMARK = "watermark"  # would fit, but the reserve for running requests would go
    NOT_READY = "not ready"  # what it would need next is still in flight
    PREEMPTED = "preempted"  # is a victim of this step
    INDIVISIBLE = "indivisible"  # may not be chunked, and the rest of the budget is too small for it; no request is so today
    ENDED = "ended"  # outgrew the pool alone, or is over
    SCHEDULED = "scheduled"  # has its tokens already


PASSED_OVER = frozenset({Reason.NOT_READY, Reason.PREEMPTED, Reason.SCHEDULED, Reason.ENDED})
"""Refusals that say nothing about the next request; `schedule_many` passes over them."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer of `StepPlan.schedule`: falsy, with a reason, when refused."""

    num_tokens: int = 0
    reason: Reason | None = None

    def __bool__(self) -> bool:
        return self.num_tokens > 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Where `StepPlan.schedule_many` stopped, and why."""

    index: int
    request: RequestView
    reason: Reason


class RequestView(Protocol):
    """One sample of a request, as one object for its whole life; read only.

    The leader of n samples stands for all of them until its prefill commits; then the siblings appear and live alone.
    """

    @property
    def id(self) -> int:
        """Unique within the engine; order of creation."""
        ...

    @property
    def arrival(self) -> int:
        """Order of arrival; samples of one request share it."""
        ...

    @property
    def arrival_time(self) -> float:
        """Seconds of the clock of `StepPlan.now`."""
        ...

    @property
    def priority(self) -> int:
        """Lower runs first, for policies that look at it; 0 unless the caller said otherwise."""
        ...

    @property
    def tenant(self) -> str: ...

    @property
    def deadline(self) -> float | None:
        """Seconds of the clock of `StepPlan.now`, or None."""
        ...

    @property
    def state(self) -> RequestState: ...

    @property
    def is_prefill(self) -> bool:
        """More than one known token still has to be computed (after a preemption that includes outputs)."""
        ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_computed_tokens(self) -> int:
        """Positions whose KV is there or on its way, for a parked request on the host; an upper bound while steps are in flight."""
        ...

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens that have been committed."""
        ...

    @property
    def max_output_tokens(self) -> int:
        """The most that it may generate: what the caller asked for, within the context. It may end sooner."""
        ...

    @property
    def num_in_flight(self) -> int:
        """Tokens that steps in flight may still deliver; an upper bound."""
        ...

    @property
    def num_samples(self) -> int:
        """Seats it takes: n until its prefill commits, then 1."""
        ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_preemptions(self) -> int: ...


class StepPlan(Protocol):
    """The step in the making. Valid during `SchedulerPolicy.plan` only.

    `running` and `waiting` are fixed for this step; `resident`, `preempted` and the numbers are live.
    """

    @property
    def now(self) -> float:
        """Monotonic seconds; virtual in simulation."""
        ...

    @property
    def running(self) -> Sequence[RequestView]:
        """Those that held blocks when the step began, in admission order."""
        ...

    @property
    def waiting(self) -> Sequence[RequestView]:
        """New, preempted and parked requests alike (see `state`), in arrival order."""
        ...

    @property
    def num_returning(self) -> int:
        """Victims of earlier steps that are not in `waiting` yet: their last tokens are still in flight."""
        ...

    @property
    def num_awaiting(self) -> int:
        """Requests that wait for a prefix which another computes. From the next step on they are not in `waiting` either, until it is there."""
        ...

    @property
    def resident(self) -> Sequence[RequestView]:
        """Those that hold blocks now, in admission order: victims come from here."""
        ...

    @property
    def preempted(self) -> Sequence[RequestView]:
        """The victims of this step so far."""
        ...

    @property
    def token_budget(self) -> int: ...

    @property
    def seats(self) -> int: ...

    @property
    def free_blocks(self) -> int: ...

    def schedule(self, request: RequestView, max_tokens: int | None = None) -> Grant:
        """Give request its next tokens, at most max_tokens, with the blocks they need. A refusal changes nothing."""
        ...

    def schedule_many(self, requests: Sequence[RequestView], start: int = 0) -> Refusal | None:
        """`schedule` in order from `start`, until a refusal that the policy can act on. None: reached the end.

        Passes over PREEMPTED, NOT_READY, SCHEDULED and ENDED. Much cheaper than a call per request.
        """
        ...

    def preempt(self, request: RequestView, mode: PreemptMode | None = None) -> None:
        """Take request's blocks and seat; what it got in this step goes back to the budget. None: the core's own rule.

        "swap" parks what was computed on the host (state PARKED), and falls back to "recompute" where the stack cannot swap
        or has no room. What the prefix cache still has is not computed again in either mode, nor copied. Raises
        ValueError when request holds no blocks, and for an unknown mode.
        """
        ...

    def victims_for(self, request: RequestView, candidates: Iterable[RequestView]) -> Sequence[RequestView] | None:
        """Who of candidates has to give way so that `schedule(request)` finds room. A peek: nobody gives way by it.

        They are taken in their order until there is room; those that hold no blocks, and those that then turn out to make no
        difference, are left out. Empty: there is room. None: not even all of them would do, or room is not what request lacks.
        """
        ...

    def cached_tokens(self, request: RequestView) -> int:
        """Tokens of request that the prefix cache holds now. A peek: memoised within the step, takes nothing."""
        ...


class SchedulerPolicy(Protocol):
    """Decides by asking the StepPlan; needs no state, and may keep what SupportsAccounting tells it."""

    def plan(self, step: StepPlan) -> None:
        """Fill the step. Called once a step on the engine's thread; what it raises is reported once and fcfs plans the rest."""
        ...


@runtime_checkable
class SupportsAccounting(Protocol):
    """Optional: hears of every request, so that a policy can keep an order of its own instead of sorting each step."""

    def on_arrive(self, request: RequestView) -> None: ...

    def on_progress(self, request: RequestView, prompt_tokens: int, output_tokens: int) -> None:
        """Tokens that a commit has added to request."""
        ...

    def on_leave(self, request: RequestView) -> None: ...

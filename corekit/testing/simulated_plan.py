"""What a policy sees of a simulated step: views and a StepPlan that note how they are used.

Knows the contract of `scheduler_policy` and the simulated step; judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from corekit.api import PASSED_OVER, Grant, PreemptMode, Reason, Refusal, RequestView

from .simulated_step import Sample, Step

MAX_READS = 500_000
"""Of one plan; many times what looking at ten thousand requests takes."""
READABLE = frozenset(name for name in vars(RequestView) if not name.startswith("_"))


class Conduct:
    """What a policy did beside planning."""

    def __init__(self) -> None:
        self.num_reads = 0
        """Attributes of views, since the plan began."""
        self.num_asked = 0
        """Requests that the plan was asked to schedule."""
        self.num_moves = 0
        """In this plan: whoever never comes to an end is stopped."""
        self.moves: list[tuple[str, Sample]] = []
        """Of this plan: "granted", "out of blocks" or "preempted"."""
        self.written: list[str] = []
        """Attributes of views that it tried to set."""
        self.late: list[str] = []
        """Members of a plan that it used after `plan` had returned."""


class View:
    """A RequestView: reads are counted, writes are noted and refused."""

    __slots__ = ("__weakref__", "_conduct", "_sample")

    def __init__(self, sample: Sample, conduct: Conduct) -> None:
        object.__setattr__(self, "_sample", sample)
        object.__setattr__(self, "_conduct", conduct)

    def __getattr__(self, name: str) -> Any:
        if name not in READABLE:
            raise AttributeError(f"a RequestView has no attribute {name!r}; it has {', '.join(sorted(READABLE))}")
        self._conduct.num_reads += 1
        if self._conduct.num_reads > MAX_READS:
            raise RuntimeError(f"plan() has read {MAX_READS} attributes of requests: it looks at each of them again and again")
        return getattr(self._sample, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._conduct.written.append(name)
        raise AttributeError(f"a RequestView is read only: {name!r} cannot be set")

    def __repr__(self) -> str:
        s = self._sample
        return f"<request {s.id} {s.state.value} {s.num_computed_tokens}/{s.num_known}>"


class Views(Sequence[Any]):
    """Samples as a policy sees them: always up to date, and not its own to change."""

    def __init__(self, of: Sequence[Sample]) -> None:
        self._of = of

    def __getitem__(self, at: Any) -> Any:
        found = self._of[at]
        return [s.view for s in found] if isinstance(found, Sequence) else found.view

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Any]:
        return iter([s.view for s in self._of])  # it may preempt while it looks


class Plan:
    """A StepPlan over a Step. Every member answers during `plan` only; what is used later is noted and raises."""

    def __init__(self, step: Step, num_returning: int, num_awaiting: int, conduct: Conduct) -> None:
        self._step: Step | None = step
        self._conduct = conduct
        self._num_returning = num_returning
        self._num_awaiting = num_awaiting
        self._limit = 1000 + 100 * (len(step.running) + len(step.waiting))
        conduct.num_moves = conduct.num_reads = conduct.num_asked = 0
        conduct.moves = []
        self._running, self._waiting = tuple([s.view for s in step.running]), tuple([s.view for s in step.waiting])

    def close(self) -> None:
        self._step = None

    def _open(self, member: str) -> Step:
        if self._step is None:
            self._conduct.late.append(member)
            raise RuntimeError(f"StepPlan.{member} was used after plan() had returned: it is valid during plan() only")
        self._conduct.num_moves += 1
        if self._conduct.num_moves > self._limit:
            raise RuntimeError(f"plan() does not come to an end: it used the StepPlan {self._limit} times, the last time {member}")
        return self._step

    @property
    def now(self) -> float:
        return self._open("now").now

    @property
    def running(self) -> Sequence[RequestView]:
        self._open("running")
        return self._running

    @property
    def waiting(self) -> Sequence[RequestView]:
        self._open("waiting")
        return self._waiting

    @property
    def num_returning(self) -> int:
        self._open("num_returning")
        return self._num_returning

    @property
    def num_awaiting(self) -> int:
        self._open("num_awaiting")
        return self._num_awaiting

    @property
    def resident(self) -> Sequence[RequestView]:
        return Views(self._open("resident").residents)

    @property
    def preempted(self) -> Sequence[RequestView]:
        return Views(self._open("preempted").victims)

    @property
    def token_budget(self) -> int:
        return self._open("token_budget").budget

    @property
    def seats(self) -> int:
        return self._open("seats").seats

    @property
    def free_blocks(self) -> int:
        return len(self._open("free_blocks").pool.free)

    def schedule(self, request: RequestView, max_tokens: int | None = None) -> Grant:
        return self._ask(self._open("schedule"), request, max_tokens)

    def schedule_many(self, requests: Sequence[RequestView], start: int = 0) -> Refusal | None:
        step = self._open("schedule_many")
        for at in range(start, len(requests)):
            reason = self._ask(step, requests[at]).reason
            if reason is not None and reason not in PASSED_OVER:
                return Refusal(at, requests[at], reason)
        return None

    def _ask(self, step: Step, request: RequestView, max_tokens: int | None = None) -> Grant:
        self._conduct.num_asked += 1
        grant = step.ask(sample_of(request), max_tokens)
        if grant or grant.reason is Reason.BLOCKS:
            self._conduct.moves.append(("granted" if grant else "out of blocks", sample_of(request)))
        return grant

    def preempt(self, request: RequestView, mode: PreemptMode | None = None) -> None:
        self._open("preempt").give_way(sample_of(request), mode)
        self._conduct.moves.append(("preempted", sample_of(request)))

    def victims_for(self, request: RequestView, candidates: Iterable[RequestView]) -> Sequence[RequestView] | None:
        step = self._open("victims_for")
        victims = step.victims_for(sample_of(request), (sample_of(other) for other in candidates))
        return None if victims is None else [s.view for s in victims]

    def cached_tokens(self, request: RequestView) -> int:
        self._open("cached_tokens")
        return sample_of(request).num_cached


def sample_of(request: RequestView) -> Sample:
    return cast(Sample, cast(View, request)._sample)

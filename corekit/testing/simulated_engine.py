"""An engine around a policy without anything to compute: arrivals, steps in flight, answers that end, aborts, samples that fork.

It tells the policy what the core tells it, in the core's order, and keeps a log. Nothing stands in for a policy that fails.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from random import Random

from corekit.api import RequestState, SchedulerPolicy, SupportsAccounting

from .simulated_plan import Conduct, Plan, View
from .simulated_step import Pool, Row, Sample, Sizes, Step, vacate


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request, and when it comes."""

    step: int = 0
    num_prompt_tokens: int
    max_tokens: int
    ends_at: int = 1 << 30
    num_samples: int = 1
    num_cached: int = 0
    shares_with: int | None = None
    """Number of an earlier arrival whose prompt begins as its own does."""
    num_shared: int = 0
    """How many tokens of it."""
    priority: int = 0
    tenant: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    sizes: Sizes
    arrivals: tuple[Arrival, ...]
    aborts: tuple[tuple[int, int], ...] = ()
    """(step, number of the arrival)."""

    @property
    def num_tokens(self) -> int:
        """What has to be computed when nobody gives way."""
        return sum(a.num_prompt_tokens + a.num_samples * min(a.max_tokens, a.ends_at) for a in self.arrivals)


class SimulatedEngine:
    """Invariant: a sample that has not finished is a resident, or waits, or is a victim with rows in flight, or awaits a prefix."""

    def __init__(self, policy: SchedulerPolicy, sizes: Sizes) -> None:
        self.conduct = Conduct()
        self.sizes = sizes
        self.pool = Pool(sizes.num_blocks)
        self.residents: list[Sample] = []
        self.waiting: list[Sample] = []
        self.returning: list[Sample] = []
        self.awaiting: list[Sample] = []
        self.samples: dict[int, list[Sample]] = {}  # by arrival, those that have not finished
        self.flights: deque[dict[Sample, Row]] = deque()
        self.log: list[tuple[tuple[tuple[int, int], ...], tuple[int, ...]]] = []
        """Of each step: who got how many tokens, and who gave way."""
        self.num_computed = 0
        self.num_outputs = 0
        self.step: Step | None = None
        self.policy = policy
        self._accounting = policy if isinstance(policy, SupportsAccounting) else None
        self._num_ids = 0
        self._num_arrivals = 0

    def arrive(self, asked: Arrival) -> Sample:
        s = Sample(
            id=self._next_id(),
            arrival=self._num_arrivals,
            arrival_time=float(len(self.log)),
            priority=asked.priority,
            tenant=asked.tenant,
            deadline=asked.deadline,
            num_prompt_tokens=asked.num_prompt_tokens,
            max_tokens=asked.max_tokens,
            ends_at=asked.ends_at,
            num_samples=asked.num_samples,
            num_cached=asked.num_cached,
            num_shared=asked.num_shared,
            writer=None if asked.shares_with is None else next(iter(self.samples.get(asked.shares_with, ())), None),
        )
        self._num_arrivals += 1
        s.view = View(s, self.conduct)
        self.samples[s.arrival] = [s]
        self._tell_arrival(s)
        self._queue(s)
        return s

    def plan(self) -> Step:
        """One call of the policy, and what follows from it at once."""
        self._end_waits()
        step = self.step = Step(len(self.log), float(len(self.log)), self.sizes, self.pool, self.residents, self.waiting)
        plan = Plan(step, len(self.returning), len(self.awaiting), self.conduct)
        try:
            self.policy.plan(plan)
        finally:
            plan.close()
        return step

    def settle(self, step: Step) -> None:
        """What a plan has decided becomes so, and the oldest step in flight commits when there are enough, or nothing was planned."""
        for s in [s for s in self.waiting if s.state is RequestState.RUNNING]:
            self._unqueue(s)
        for s in step.victims:
            if s in self.waiting:
                s.queued = True  # admitted and undone in one step
            elif s.steps_in_flight:
                self.returning.append(s)
            else:
                self._queue(s)
        for s in step.awaiting:
            if s in self.waiting:
                self._unqueue(s)
                self.awaiting.append(s)
        for s in step.ended:
            self.finish(s)
        self.log.append((tuple((s.id, count) for s, (_, count, _) in step.rows.items()), tuple(s.id for s in step.victims)))
        for s in step.rows:
            s.steps_in_flight += 1
        if step.rows:
            self.flights.append(step.rows)
        if self.flights and (len(self.flights) >= self.sizes.depth or not step.rows):
            self._commit(self.flights.popleft())

    def _end_waits(self) -> None:
        """Whoever awaits a prefix waits on when it is there, or when nobody computes it any more."""
        for s in [s for s in self.awaiting if not s.awaits(len(self.log))]:
            assert s.writer is not None
            s.num_cached = max(s.num_cached, min(s.num_shared, s.writer.num_written))
            self.awaiting.remove(s)
            self._queue(s)

    def _commit(self, rows: dict[Sample, Row]) -> None:
        for s, (start, count, draws) in rows.items():
            s.steps_in_flight -= 1
            s.num_in_flight -= draws > 0
            self.num_computed += count
            s.num_written = start + count
            if s.state is RequestState.FINISHED:
                continue
            s.num_output_tokens += draws > 0
            self.num_outputs += draws
            if self._accounting is not None:
                self._accounting.on_progress(s.view, max(0, min(start + count, s.num_prompt_tokens) - start), int(draws > 0))
            forked = self._fork(s) if draws > 1 else []
            for one in chain((s,), forked):
                if one.num_output_tokens >= min(one.max_tokens, one.ends_at):
                    self.finish(one)
            if s in self.returning and not s.steps_in_flight:
                self.returning.remove(s)
                self._queue(s)

    def _fork(self, leader: Sample) -> list[Sample]:
        siblings = []
        for _ in range(1, leader.num_samples):
            s = Sample(
                id=self._next_id(),
                arrival=leader.arrival,
                arrival_time=leader.arrival_time,
                priority=leader.priority,
                tenant=leader.tenant,
                deadline=leader.deadline,
                num_prompt_tokens=leader.num_prompt_tokens,
                max_tokens=leader.max_tokens,
                ends_at=leader.ends_at,
                num_output_tokens=1,
                queued=False,
            )
            s.view = View(s, self.conduct)
            siblings.append(s)
            self.samples[s.arrival].append(s)
            if leader.state is RequestState.RUNNING:
                s.state = RequestState.RUNNING
                s.num_computed_tokens = s.num_prompt_tokens
                s.table = leader.table[: self.sizes.span(s.num_prompt_tokens)]
                for block in s.table:
                    self.pool.refs[block] += 1
                self.residents.append(s)
            else:
                s.state = RequestState.PREEMPTED
                self._queue(s)
            self._tell_arrival(s)
        leader.num_samples = 1
        return siblings

    def abort(self, arrival: int) -> None:
        for s in tuple(self.samples.get(arrival, ())):
            self.finish(s)

    def finish(self, s: Sample) -> None:
        if s.state is RequestState.RUNNING:
            vacate(s, self.residents, self.pool)
        elif s.queued:
            self._unqueue(s)
        elif s in self.awaiting:
            self.awaiting.remove(s)
        else:
            self.returning.remove(s)
        s.state = RequestState.FINISHED
        self.samples[s.arrival].remove(s)
        if not self.samples[s.arrival]:
            del self.samples[s.arrival]
        if self._accounting is not None:
            self._accounting.on_leave(s.view)

    def _tell_arrival(self, s: Sample) -> None:
        if self._accounting is not None:
            self._accounting.on_arrive(s.view)

    def _queue(self, s: Sample) -> None:
        s.queued = True
        insort(self.waiting, s, key=lambda s: (s.arrival, s.id))

    def _unqueue(self, s: Sample) -> None:
        s.queued = False
        self.waiting.remove(s)

    def _next_id(self) -> int:
        self._num_ids += 1
        return self._num_ids


def play(engine: SimulatedEngine, scenario: Scenario, *, max_steps: int, look: Callable[[Step], None] = lambda step: None) -> None:
    """The scenario from its first arrival to the end of its last answer. look: is shown every step as the policy left it."""
    coming = deque(sorted(scenario.arrivals, key=lambda asked: asked.step))
    while coming or engine.samples or engine.flights:
        while coming and coming[0].step <= len(engine.log):
            engine.arrive(coming.popleft())
        for at, arrival in scenario.aborts:
            if at == len(engine.log):
                engine.abort(arrival)
        step = engine.plan()
        look(step)
        engine.settle(step)
        left = [s.view for group in engine.samples.values() for s in group]
        assert len(engine.log) < max_steps, (
            f"after {max_steps} steps these have not finished: {left}; (who got tokens, who gave way) in the last steps: {engine.log[-3:]}"
        )


def random_scenario(rng: Random, *, depth: int | None = None, parks: bool = False, shares: bool = False, num_arrivals: int = 8) -> Scenario:
    """Small numbers, so that seats, blocks and budget are all short; every request fits the pool alone, as behind the door."""
    sizes = Sizes(
        num_blocks=rng.choice((8, 12, 24)),
        max_num_seqs=rng.choice((1, 3, 4, 8)),
        max_num_batched_tokens=rng.choice((3, 8, 16, 40)),
        long_prefill_token_threshold=rng.choice((0, 0, 5)),
        watermark_blocks=rng.choice((0, 0, 1, 2)),
        depth=rng.choice((1, 2, 3)) if depth is None else depth,
        parks=parks,
    )
    most = sizes.num_blocks * sizes.block_size - 12
    arrivals = tuple(
        Arrival(
            step=rng.choice((0, 0, rng.randrange(20))),
            num_prompt_tokens=(length := rng.randint(1, rng.choice((8, most)))),
            max_tokens=rng.choice((1, 4, 12)),
            ends_at=rng.choice((1 << 30, 1 << 30, 2, 7)),
            num_samples=min(sizes.max_num_seqs, rng.choice((1, 1, 1, 3))),
            num_cached=min(length - 1, rng.choice((0, 0, 4))) // 4 * 4,
            priority=rng.choice((-1, 0, 0, 5)),
            tenant=rng.choice(("", "a", "b")),
            deadline=rng.choice((None, float(rng.randint(1, 60)))),
        )
        for _ in range(rng.randint(2, num_arrivals))
    )
    if shares:
        arrivals = tuple(_sharing(rng, sorted(arrivals, key=lambda asked: asked.step)))
    aborts = tuple((rng.randrange(1, 25), number) for number in range(len(arrivals)) if rng.random() < 0.15)
    return Scenario(sizes=sizes, arrivals=arrivals, aborts=aborts)


def _sharing(rng: Random, arrivals: Sequence[Arrival]) -> Iterator[Arrival]:
    """Each but the first begins with all blocks of an earlier one before that one's last token, and is as long at least."""
    lengths: list[int] = []
    for asked in arrivals:
        first = rng.randrange(len(lengths)) if lengths else None
        lengths.append(asked.num_prompt_tokens if first is None else max(asked.num_prompt_tokens, lengths[first]))
        common = 0 if first is None else (lengths[first] - 1) // 4 * 4
        yield replace(asked, num_prompt_tokens=lengths[-1], shares_with=first, num_shared=common)

"""A step without an engine: requests that are counts only, blocks that are numbers, and what is granted, refused and taken back.

Knows the contract of `scheduler_policy` alone; nothing of the core's own code, nor of any policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from corekit.api import Grant, PreemptMode, Reason, RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a simulated engine."""

    num_blocks: int = 16
    block_size: int = 4
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 16
    long_prefill_token_threshold: int = 0
    watermark_blocks: int = 0
    depth: int = 1
    """Steps in flight."""
    parks: bool = False
    """Victims are parked: they keep what they computed."""

    def span(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


@dataclass(slots=True, eq=False, kw_only=True)
class Sample:
    """What stands behind a view. Counts are upper bounds while rows are in flight."""

    id: int
    arrival: int
    arrival_time: float
    priority: int
    tenant: str
    deadline: float | None
    num_prompt_tokens: int
    max_tokens: int
    ends_at: int
    """Generated tokens after which it stops by itself; a policy cannot know."""
    num_samples: int = 1
    num_cached: int = 0
    """Leading tokens that a prefix cache has."""
    num_shared: int = 0
    """Leading tokens that it has in common with `writer`."""
    writer: Sample | None = None
    """Whose prompt it waits for, while that one computes them."""
    num_written: int = 0
    """Tokens that others may read: those of committed steps."""
    state: RequestState = RequestState.WAITING
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_in_flight: int = 0
    num_preemptions: int = 0
    steps_in_flight: int = 0
    granted_step: int = -1
    queued: bool = True
    table: list[int] = field(default_factory=list)
    view: Any = None

    @property
    def num_known(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens + self.num_in_flight

    @property
    def max_known(self) -> int:
        return self.num_prompt_tokens + self.max_tokens

    @property
    def max_output_tokens(self) -> int:
        return self.max_tokens

    @property
    def is_prefill(self) -> bool:
        return self.num_computed_tokens < self.num_known - 1

    @property
    def num_blocks(self) -> int:
        return len(self.table)

    @property
    def num_found(self) -> int:
        """Tokens that need not be computed when it is admitted."""
        keeps = self.state is RequestState.WAITING or self.num_shared
        return self.num_computed_tokens or (min(self.num_cached, self.num_prompt_tokens - 1) if keeps else 0)

    def awaits(self, number: int) -> bool:
        """Whether in step `number` another computes what it needs next. Nobody waits for one that got nothing in this step or the last."""
        w = self.writer
        if w is None or w.state is not RequestState.RUNNING or self.num_found >= self.num_shared or w.num_written >= self.num_shared:
            return False
        return w.granted_step >= number - 1 or w.num_computed_tokens >= self.num_shared


class Row(NamedTuple):
    """What a step does for one sample."""

    start: int
    num_tokens: int
    draws: int
    """Tokens that it draws: one for every sample that it stands for, none in the middle of a prompt."""


class Pool:
    """Blocks by number. Invariant: refs[b] tables list block b; a block is free while none does."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.refs = [0] * num_blocks

    def take(self) -> int:
        block = self.free.pop()
        self.refs[block] = 1
        return block

    def drop(self, block: int) -> None:
        self.refs[block] -= 1
        if not self.refs[block]:
            self.free.append(block)


class Step:
    """The core's half of a plan: what is granted, refused and taken back. Sees samples."""

    def __init__(self, number: int, now: float, sizes: Sizes, pool: Pool, residents: list[Sample], waiting: Sequence[Sample]) -> None:
        self.number = number
        self.now = now
        self.sizes = sizes
        self.pool = pool
        self.residents = residents
        self.running = tuple(residents)
        self.waiting = tuple(waiting)
        self.victims: list[Sample] = []
        self.ended: list[Sample] = []
        self.awaiting: dict[Sample, None] = {}
        """Those that were refused because another computes their prefix."""
        self.rows: dict[Sample, Row] = {}
        self.refused: set[Reason] = set()
        self.budget = sizes.max_num_batched_tokens
        self.seats = sizes.max_num_seqs - sum(s.num_samples for s in residents)

    def ask(self, s: Sample, max_tokens: int | None = None) -> Grant:
        reason, count = self._answer(s, max_tokens)
        if reason is not None:
            self.refused.add(reason)
            return Grant(reason=reason)
        start = s.num_computed_tokens = s.num_found
        if s.state is not RequestState.RUNNING:
            s.num_written = start
            s.state = RequestState.RUNNING
            self.residents.append(s)
            self.seats -= s.num_samples
        self._write(s, start, start + count)
        draws = 0 if start + count < s.num_known else s.num_samples if s.num_known == s.num_prompt_tokens else 1
        self.rows[s] = Row(start, count, draws)
        s.granted_step = self.number
        s.num_computed_tokens += count
        s.num_in_flight += draws > 0
        self.budget -= count
        return Grant(count)

    def _answer(self, s: Sample, max_tokens: int | None) -> tuple[Reason | None, int]:
        if s.granted_step == self.number:
            return (Reason.SCHEDULED if s in self.rows else Reason.ENDED if s in self.ended else Reason.PREEMPTED), 0
        if s.state is RequestState.FINISHED:
            return Reason.ENDED, 0
        if s.num_known >= s.max_known or (s.state is not RequestState.RUNNING and (s.steps_in_flight or not s.queued)):
            return Reason.NOT_READY, 0
        if s.state is not RequestState.RUNNING and s.awaits(self.number):
            self.awaiting[s] = None
            return Reason.NOT_READY, 0
        most = self.most(self.budget if max_tokens is None else min(max_tokens, self.budget))
        if most <= 0:
            return Reason.BUDGET, 0
        computed = s.num_found
        count = min(s.num_known - computed, most)
        if s.state is RequestState.RUNNING:
            if count <= 0:
                return Reason.NOT_READY, 0
            if self.needed(s, computed + count) > len(self.pool.free):
                return (Reason.BLOCKS if len(self.residents) > 1 else self._end(s)), 0
            return None, count
        if s.num_samples > self.seats:
            return Reason.SEATS, 0
        left = len(self.pool.free) - self.sizes.span(s.num_known if self.residents else computed + count)
        if left < 0:
            return (Reason.BLOCKS if self.residents else self._end(s)), 0
        return (Reason.WATERMARK if self.residents and left < self.sizes.watermark_blocks else None), count

    def most(self, budget: int) -> int:
        return min(budget, self.sizes.long_prefill_token_threshold or budget)

    def needed(self, s: Sample, end: int, away: Mapping[int, int] | None = None) -> int:
        """New blocks for positions up to `end`; one more to copy a shared block that is written into."""
        first = s.num_computed_tokens // self.sizes.block_size
        copied = first < len(s.table) and self.pool.refs[s.table[first]] > 1 + (away or {}).get(s.table[first], 0)
        return max(0, self.sizes.span(end) - len(s.table)) + copied

    def _write(self, s: Sample, start: int, end: int) -> None:
        first = start // self.sizes.block_size
        if first < len(s.table) and self.pool.refs[s.table[first]] > 1:
            self.pool.drop(s.table[first])
            s.table[first] = self.pool.take()
        while len(s.table) < self.sizes.span(end):
            s.table.append(self.pool.take())

    def _end(self, s: Sample) -> Reason:
        if s.steps_in_flight:
            return Reason.NOT_READY
        s.granted_step = self.number
        self.ended.append(s)
        return Reason.ENDED

    def give_way(self, s: Sample, mode: PreemptMode | None) -> None:
        if mode not in (None, "recompute", "swap"):
            raise ValueError(f"preempt mode {mode!r}: it is None, 'recompute' or 'swap'")
        if s.state is not RequestState.RUNNING:
            raise ValueError(f"{s.view!r} holds no blocks: only those in step.resident can be preempted")
        _, count, draws = self.rows.pop(s, Row(0, 0, 0))
        self.budget += count
        s.num_computed_tokens -= count
        s.num_in_flight -= draws > 0
        s.granted_step = self.number
        s.num_preemptions += 1
        vacate(s, self.residents, self.pool)
        self.seats += s.num_samples
        parked = self.sizes.parks and mode != "recompute" and s.num_computed_tokens > 0
        s.state = RequestState.PARKED if parked else RequestState.PREEMPTED
        s.num_computed_tokens *= parked
        s.queued = False
        self.victims.append(s)

    def victims_for(self, s: Sample, candidates: Iterable[Sample]) -> list[Sample] | None:
        waits = s.state is not RequestState.RUNNING
        if (
            s.granted_step == self.number
            or s.num_known >= s.max_known
            or s.num_computed_tokens >= s.num_known
            or (waits and (not s.queued or s.awaits(self.number)))
        ):
            return None
        taken: list[Sample] = []
        if not self._fits(s, taken):
            for other in candidates:
                if other.state is RequestState.RUNNING and other is not s and other not in taken:
                    taken.append(other)
                    if self._fits(s, taken):
                        break
            else:
                return None
        for other in reversed(tuple(taken)):
            less = [one for one in taken if one is not other]
            if self._fits(s, less):
                taken = less
        return taken

    def _fits(self, s: Sample, away: Sequence[Sample]) -> bool:
        drops: dict[int, int] = {}
        for other in away:
            for block in other.table:
                drops[block] = drops.get(block, 0) + 1
        free = len(self.pool.free) + sum(self.pool.refs[block] == count for block, count in drops.items())
        most = self.most(self.budget + sum(self.rows[other].num_tokens for other in away if other in self.rows))
        others = len(self.residents) - len(away)
        if most <= 0:
            return False
        if s.state is RequestState.RUNNING:
            return others == 1 or self.needed(s, min(s.num_known, s.num_computed_tokens + most), drops) <= free
        seats = self.seats + sum(other.num_samples for other in away)
        return s.num_samples <= seats and (not others or free - self.sizes.span(s.num_known) >= self.sizes.watermark_blocks)


def vacate(s: Sample, residents: list[Sample], pool: Pool) -> None:
    residents.remove(s)
    for block in s.table:
        pool.drop(block)
    s.table = []

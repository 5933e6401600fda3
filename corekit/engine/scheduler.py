"""Plans steps and commits their results. Knows ids, counts and blocks; never tensors or text, and no clock but the one it is given."""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence

from corekit.api import (
    Admission,
    BlockAllocator,
    FinishReason,
    RequestState,
    RowInput,
    SchedulerPolicy,
    StepInput,
    StepResult,
    SupportsAccounting,
    TokenLogprob,
)

from .blocks import BlockTables, CopyJournal, KeyChain
from .events import SampleDelta
from .request import Group, NewRequest, Request
from .step_plan import Limits, Row, Step

log = logging.getLogger(__name__)

MAX_REPORTS = 100
NOTHING: tuple[tuple[int, ...], ...] = ((),)


def arrival_order(r: Request) -> tuple[int, int]:
    return (r.group.arrival, r.sample)


class Scheduler:
    """Invariant between steps: a live request is resident, or stands in `waiting`, or has rows in flight that will queue it."""

    def __init__(
        self,
        *,
        stack: BlockAllocator,
        journal: CopyJournal,
        policy: SchedulerPolicy,
        fallback: SchedulerPolicy,
        limits: Limits,
        clock: Callable[[], float],
        key_seed: bytes = b"",
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.fallback = fallback
        self.blocks = BlockTables(stack, journal, block_size=limits.block_size, num_blocks=limits.num_blocks)
        self.step = Step(limits=limits, blocks=self.blocks, keys=(keys := KeyChain(limits.block_size, key_seed)), clock=clock)
        self.groups: dict[str, Group] = {}
        self.waiting: list[Request] = []  # arrival order
        self.finished: list[Group] = []  # since the engine looked last
        self.deltas: list[SampleDelta] = []  # since the engine looked last
        self.num_waiting_tokens = 0
        self.num_preemptions = 0
        self.steps_in_flight = 0
        self._keys = keys
        self._journal = journal
        self._accounting = policy if isinstance(policy, SupportsAccounting) else None
        self._gone: list[int] = []
        self._num_ids = 0
        self._num_arrivals = 0
        self._reported: set[str] = set()

    # -- the door

    def refusal(self, num_prompt_tokens: int, num_samples: int) -> str | None:
        """Why such a request can never run; None if it can. Depends on the limits alone."""
        limits, needed = self.limits, self.blocks.span(num_prompt_tokens + 1)
        if needed > limits.num_blocks:
            pool = limits.num_blocks * limits.block_size
            return (
                f"a prompt of {num_prompt_tokens} tokens and one generated token need {needed} KV blocks of {limits.block_size}, "
                f"the pool has {limits.num_blocks} ({pool} tokens)"
            )
        if num_samples > limits.max_num_seqs:
            return f"n = {num_samples} samples need as many seats, the engine has max_num_seqs = {limits.max_num_seqs}"
        return None

    def add(self, asked: NewRequest) -> None:
        if asked.request_id in self.groups:
            raise ValueError(f"request id {asked.request_id!r} is in use")
        group = Group(asked, self._num_arrivals)
        self._num_arrivals += 1
        self.groups[asked.request_id] = group
        leader = Request(self._new_id(), group, num_samples=asked.params.n)
        group.samples.append(leader)
        self._account("on_arrive", leader)
        self._queue(leader)

    def end(self, request_id: str, *, sample: int | None, reason: FinishReason, error: str | None = None) -> None:
        """End a request, or one sample of it, in whatever state it is. Unknown ids are ignored: it may have just finished."""
        group = self.groups.get(request_id)
        for r in tuple(group.samples) if group else ():
            if r.state is not RequestState.FINISHED and sample in (None, r.sample):
                self._finish(r, reason, error=error)

    # -- planning

    def schedule(self) -> tuple[list[Row], StepInput | None]:
        """The next step; no input when there is nothing to run."""
        step = self.step
        step.begin(self.waiting)
        self._plan()
        step.close()
        self._settle()
        rows = list(step.rows.values())
        if not rows:
            return rows, None
        sent = tuple([self._send(row) for row in rows])
        gone, self._gone = tuple(self._gone), []
        self.steps_in_flight += 1
        return rows, StepInput(number=step.number, rows=sent, copies=self._journal.drain(), gone=gone)

    def _plan(self) -> None:
        step, name = self.step, type(self.policy).__name__
        try:
            self.policy.plan(step)
        except Exception as error:
            self._report(f"scheduler policy {name} raised {error!r}; first come first served planned the rest of the step")
            self.fallback.plan(step)
        idle = not step.rows and not step.ended and not self.steps_in_flight
        if idle and (step.resident or self.waiting):
            self.fallback.plan(step)
            if step.rows or step.ended:
                self._report(f"scheduler policy {name} scheduled nothing although something could run; first come first served planned the step")

    def _settle(self) -> None:
        """The waiting list changes between plans only."""
        for r in self.step.admitted:
            if r.state is RequestState.RUNNING:
                self._unqueue(r)
        for r in self.step.preempted:
            if r.state is RequestState.PREEMPTED and not r.queued and not r.steps_in_flight:
                self._queue(r)
        self.num_preemptions += len(self.step.preempted)
        for r in self.step.ended:
            pool = self.limits.num_blocks * self.limits.block_size
            log.warning("request %s ended with reason length: alone it outgrew the KV pool of %d tokens", r.group.asked.request_id, pool)
            self._finish(r, "length")

    def _send(self, row: Row) -> RowInput:
        r, admission = row.request, None
        r.steps_in_flight += 1
        if not r.sent:
            asked, r.sent = r.group.asked, True
            admission = Admission(tuple(r.tokens), r.num_prompt_tokens, asked.params, asked.seed, r.sample, asked.end_ids)
        at = r.table_sent
        blocks: tuple[int, ...] = ()
        if at < len(r.table):
            blocks = tuple(r.table[at:])
            r.table_sent = len(r.table)
        return RowInput(r.id, row.start, row.num_tokens, row.num_samples, row.num_drafts, at, blocks, admission)

    # -- committing

    def commit(self, rows: Sequence[Row], result: StepResult) -> None:
        """Counts are added, never assigned: rows in flight were planned on upper bounds. Append, publish, fork, finish."""
        self.steps_in_flight -= 1
        faults, logprobs, caches = result.faults, result.logprobs, self.blocks.caches_prefixes
        for at, row in enumerate(rows):
            r = row.request
            r.steps_in_flight -= 1
            r.num_in_flight -= row.max_new_tokens
            if r.state is RequestState.FINISHED:
                continue
            if at in faults:
                self._finish(r, "error", error=faults[at])
                continue
            drawn = result.tokens[at] if row.num_samples else NOTHING
            accepted = drawn[0]
            rejected = row.max_new_tokens - len(accepted)
            r.tokens.extend(accepted)
            if r.state is RequestState.RUNNING:
                r.num_computed_tokens -= rejected
                r.num_committed += row.num_tokens - rejected
                if caches:
                    self._publish(r)
            elif not r.steps_in_flight:  # preempted meanwhile: it keeps the tokens, and may be admitted again from now on
                self._queue(r)
            if self._accounting:
                prompt = max(0, min(row.start + row.num_tokens, r.num_prompt_tokens) - row.start)
                self._account("on_progress", r, prompt, len(accepted))
            if not row.num_samples:
                continue
            siblings = self._fork(r, drawn) if row.num_samples > 1 else ()
            chances = logprobs.get(at)
            for n, one in enumerate((r, *siblings)):
                self._deliver(one, drawn[n], chances[n] if chances else None)

    def _publish(self, r: Request) -> None:
        size = self.limits.block_size
        self._keys.extend(r.keys, r.tokens, r.num_committed)
        while r.num_published < r.num_committed // size:
            if not self.blocks.publish(r.table[r.num_published], r.keys[r.num_published]):
                break
            r.num_published += 1

    def _fork(self, leader: Request, drawn: Sequence[tuple[int, ...]]) -> list[Request]:
        """The siblings of a leader whose prefill has just committed. Its own half-filled block may already hold more than the prompt."""
        siblings, num_prompt = [], leader.num_prompt_tokens
        full = num_prompt // self.limits.block_size
        for sample in range(1, leader.num_samples):
            r = Request(self._new_id(), leader.group, sample=sample)
            r.tokens.extend(drawn[sample])
            leader.group.samples.append(r)
            siblings.append(r)
            self._account("on_arrive", r)
            if leader.state is RequestState.RUNNING:
                r.table = self.blocks.share(leader.table[: self.blocks.span(num_prompt)])
                r.num_computed_tokens = r.num_committed = num_prompt
                r.keys, r.num_published = leader.keys[:full], min(full, leader.num_published)
                r.state = RequestState.RUNNING
                self.step.resident.append(r)  # on one of the seats that the leader reserved
            else:
                r.state = RequestState.PREEMPTED
                self._queue(r)
        leader.num_samples = 1
        return siblings

    def _deliver(self, r: Request, new: tuple[int, ...], logprobs: tuple[TokenLogprob, ...] | None) -> None:
        """Tell the client of new tokens, and finish the sample if one of them ends it."""
        group = r.group
        if not group.end_ids.isdisjoint(new):
            keep = next(i for i, token in enumerate(new) if token in group.end_ids) + 1
            del r.tokens[len(r.tokens) - len(new) + keep :]
            self._finish(r, "stop", new=new[:keep], logprobs=logprobs and logprobs[:keep], stop=new[keep - 1])
        elif len(r.tokens) >= r.max_known:
            self._finish(r, "length", new=new, logprobs=logprobs)
        else:
            self.deltas.append(SampleDelta(group.asked.request_id, r.sample, new, logprobs, None, None, None, group.num_cached_tokens))

    # -- leaving

    def _finish(
        self,
        r: Request,
        reason: FinishReason,
        *,
        new: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] | None = None,
        stop: int | None = None,
        error: str | None = None,
    ) -> None:
        group = r.group
        if r.state is RequestState.RUNNING:
            self.step.vacate(r)
        elif r.queued:
            self._unqueue(r)
        r.state = RequestState.FINISHED
        self._gone.append(r.id)
        self._account("on_leave", r)
        self.deltas.append(SampleDelta(group.asked.request_id, r.sample, new, logprobs, reason, stop, error, group.num_cached_tokens))
        if group.finished:
            group.finish_reason = reason
            del self.groups[group.asked.request_id]
            self.finished.append(group)

    # -- the waiting list

    def _queue(self, r: Request) -> None:
        r.queued = True
        self.num_waiting_tokens += len(r.tokens)
        insort(self.waiting, r, key=arrival_order)

    def _unqueue(self, r: Request) -> None:
        r.queued = False
        self.num_waiting_tokens -= len(r.tokens)
        del self.waiting[bisect_left(self.waiting, arrival_order(r), key=arrival_order)]

    # -- the rest

    def _account(self, event: str, r: Request, *counts: int) -> None:
        if self._accounting is None:
            return
        try:
            getattr(self._accounting, event)(r, *counts)
        except Exception as error:
            self._report(f"scheduler policy {type(self.policy).__name__} raised {error!r} in {event}")

    def _report(self, message: str) -> None:
        """Once: a fault that repeats every step must not fill the log."""
        if message not in self._reported and len(self._reported) < MAX_REPORTS:
            self._reported.add(message)
            log.warning(message)

    def _new_id(self) -> int:
        self._num_ids += 1
        return self._num_ids

    def audit(self) -> Iterator[str]:
        """Broken invariants, once every request has finished and every step has committed."""
        if self.groups or self.step.resident or self.waiting or self.steps_in_flight:
            yield f"{len(self.groups)} requests, {len(self.step.resident)} residents, {len(self.waiting)} waiting, {self.steps_in_flight} steps are left"
        if self.step.seats != self.limits.max_num_seqs:
            yield f"{self.step.seats} of {self.limits.max_num_seqs} seats came back"
        if self.num_waiting_tokens:
            yield f"{self.num_waiting_tokens} tokens are still counted as waiting"
        yield from self.blocks.audit()

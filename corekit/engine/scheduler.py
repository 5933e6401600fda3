"""Plans steps and commits their results. Knows ids, counts and blocks; never tensors or text, and no clock but the one it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from corekit.api import Admission, BlockAllocator, FinishReason, RequestState, RowInput, RowMasks, SchedulerPolicy, StepInput, StepResult, TokenLogprob

from .blocks import BlockTables, CopyJournal
from .claims import Claims
from .counts import Counts
from .events import SampleDelta
from .keys import KeyChain
from .limits import Limits
from .parking import Parking
from .planner import Planner
from .prefixes import Prefixes
from .rates import Rates
from .request import Group, NewRequest, Request
from .row import Row
from .step_plan import Step
from .waiting import WaitingList

NOTHING: tuple[tuple[int, ...], ...] = ((),)
LOST = (RequestState.PREEMPTED, RequestState.PARKED)


class Scheduler:
    """Invariant between steps: a live request is resident, or stands in `waiting`, or will be queued: by its rows in flight, or by `claims`."""

    def __init__(
        self,
        *,
        stack: BlockAllocator,
        journal: CopyJournal,
        policy: SchedulerPolicy,
        fallback: SchedulerPolicy,
        limits: Limits,
        clock: Callable[[], float],
        keys: KeyChain | None = None,
    ) -> None:
        self.limits = limits
        self.planner = Planner(policy, fallback)
        self.blocks = BlockTables(stack, journal, block_size=limits.block_size, num_blocks=limits.num_blocks)
        self.claims = Claims(limits.block_size)
        self.rates = Rates()
        self.counts = Counts(limits.bytes_per_block)
        self._keys = keys or KeyChain(limits.block_size)
        parking = Parking(blocks=self.blocks, keys=self._keys, limits=limits, rates=self.rates, counts=self.counts)
        prefixes = Prefixes(blocks=self.blocks, keys=self._keys, claims=self.claims)
        self.step = Step(limits=limits, blocks=self.blocks, prefixes=prefixes, claims=self.claims, parking=parking, clock=clock)
        self.groups: dict[str, Group] = {}
        self.waiting = WaitingList()
        self.finished: list[Group] = []  # since the engine looked last
        self.deltas: list[SampleDelta] = []  # since the engine looked last
        self.steps_in_flight = 0
        self._journal = journal
        self._gone: list[int] = []
        self._returning: set[Request] = set()  # victims whose rows in flight have not committed
        self._num_ids = self._num_arrivals = 0
        self._num_alive = 0  # samples; those of a leader before its fork are one

    # -- the door

    def add(self, asked: NewRequest) -> None:
        if asked.request_id in self.groups:
            raise ValueError(f"request id {asked.request_id!r} is in use")
        group = Group(asked, self._num_arrivals)
        self._num_arrivals += 1
        self.groups[asked.request_id] = group
        leader = Request(self._new_id(), group, num_samples=asked.params.n)
        group.samples.append(leader)
        self.planner.on_arrive(leader)
        self.waiting.arrive(leader)

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
        for r in self.claims.take_free(step.number + 1):
            self.waiting.add(r)
        step.begin(self.waiting.requests, len(self._returning))
        self.planner.plan(step, in_flight=bool(self.steps_in_flight))
        step.close()
        self._settle()
        rows = list(step.rows.values())
        if not rows:
            return rows, None
        sent = tuple([self._send(row) for row in rows])
        gone, self._gone = tuple(self._gone), []
        copies = self._journal.drain()
        self.counts.submitted(copies)
        self.steps_in_flight += 1
        return rows, StepInput(number=step.number, rows=sent, copies=copies, gone=gone)

    def _settle(self) -> None:
        """The waiting list changes between plans only."""
        step, waiting = self.step, self.waiting
        for r in step.admitted:
            if r.state is RequestState.RUNNING:
                waiting.remove(r)
                self._admitted(r)
        for r in step.awaiting:
            if r.awaits is not None and r.queued:  # its writer may have given way since
                waiting.remove(r)
        for r in step.victims:
            if r.state in LOST and not r.queued:
                if r.steps_in_flight:
                    self._returning.add(r)
                else:
                    waiting.add(r)
        self.counts.preempted(step.victims)
        for r in step.ended:
            pool = self.limits.num_blocks * self.limits.block_size
            message = f"request {r.group.asked.request_id} ended with reason length: alone it outgrew the KV pool of {pool} tokens"
            self.planner.report(f"{message}. More that do so are not reported", kind="outgrown")
            self._finish(r, "length")

    def _admitted(self, r: Request) -> None:
        if r.fresh:
            group, start = r.group, self.step.rows[r].start
            group.admitted_time, group.num_cached_tokens = self.step.now, start
            if self.blocks.caches_prefixes and group.prompt_logprobs is None:
                self.counts.looked_up(r.num_prompt_tokens, start)
        self.waiting.began(r)

    def _send(self, row: Row) -> RowInput:
        r, admission = row.request, None
        r.steps_in_flight += 1
        if not r.sent:
            asked, r.sent = r.group.asked, True
            admission = Admission(tuple(r.tokens), r.num_prompt_tokens, asked.params, asked.seed, r.sample, asked.end_ids, asked.bad_words)
        at = r.table_sent
        blocks: tuple[int, ...] = ()
        if at < len(r.table):
            blocks = tuple(r.table[at:])
            r.table_sent = len(r.table)
        return RowInput(r.id, row.start, row.num_tokens, row.num_samples, row.num_drafts, at, blocks, admission)

    def masks(self, rows: Sequence[Row]) -> RowMasks | None:
        """What the constrained rows of the newest step may draw. Every earlier step must have committed: masks follow tokens."""
        words: dict[int, bytes] = {}
        for at, row in enumerate(rows):
            r = row.request
            if r.constraint is not None and row.num_samples and r.state is not RequestState.FINISHED:
                if (mask := r.constraint.mask(self.limits.vocab_size)) is None:
                    self._finish(r, "error", error=r.constraint.fault)
                else:
                    words[at] = mask
        return RowMasks(words=words) if words else None

    # -- committing

    def commit(self, rows: Sequence[Row], result: StepResult) -> None:
        """Counts are added, never assigned: rows in flight were planned on upper bounds. Append, publish, fork, finish."""
        self.steps_in_flight -= 1
        self.counts.committed()
        faults, logprobs, scores, caches = result.faults, result.logprobs, result.prompt_logprobs, self.blocks.caches_prefixes
        for at, row in enumerate(rows):
            r = row.request
            r.steps_in_flight -= 1
            r.num_in_flight -= row.max_new_tokens
            if r.state is RequestState.FINISHED:
                continue
            if at in faults:
                self._finish(r, "error", error=faults[at])
                continue
            if scores and (scored := scores.get(at)) is not None:
                r.group.keep_prompt_logprobs(*scored)
            drawn = result.tokens[at] if row.num_samples else NOTHING
            accepted = drawn[0]
            rejected = row.max_new_tokens - len(accepted)
            r.tokens.extend(accepted)
            if r.state is not RequestState.PREEMPTED:  # what is parked counts as what runs
                r.num_computed_tokens -= rejected
                r.num_committed += row.num_tokens - rejected
                if caches and r.state is RequestState.RUNNING:
                    self._publish(r)
            self.planner.on_progress(r, row.start, row.num_tokens, len(accepted))
            if row.num_samples:
                siblings = self._fork(r, drawn) if row.num_samples > 1 else ()
                chances = logprobs.get(at)
                for n, one in enumerate((r, *siblings)):
                    if one.constraint is None or one.constraint.accept(drawn[n]):
                        self._deliver(one, drawn[n], chances[n] if chances else None)
                    else:
                        self._finish(one, "error", error=one.constraint.fault)
            if r.state in LOST and not r.steps_in_flight:  # it kept its tokens, and may be admitted again
                self._returning.remove(r)
                self.waiting.add(r)

    def _publish(self, r: Request) -> None:
        size = self.limits.block_size
        if r.num_published == r.num_committed // size:
            return
        self._keys.extend(r.keys, r.tokens, r.num_committed, r.group.extra)
        until = self.step.now + r.group.retention if r.group.retention else None
        while r.num_published < r.num_committed // size:
            key = r.keys[r.num_published]
            if not self.blocks.publish(r.table[r.num_published], key, until):
                break
            r.num_published += 1
            self.claims.published(key)

    def _fork(self, leader: Request, drawn: Sequence[tuple[int, ...]]) -> list[Request]:
        """The siblings of a leader whose prefill has just committed. Its own half-filled block may already hold more than the prompt."""
        siblings, num_prompt = [], leader.num_prompt_tokens
        full = num_prompt // self.limits.block_size
        for sample in range(1, leader.num_samples):
            r = Request(self._new_id(), leader.group, sample=sample)
            r.tokens.extend(drawn[sample])
            leader.group.samples.append(r)
            siblings.append(r)
            if leader.state is RequestState.RUNNING:
                r.table = self.blocks.share(leader.table[: self.blocks.span(num_prompt)])
                r.num_computed_tokens = r.num_committed = num_prompt
                r.keys, r.num_published = leader.keys[:full], min(full, leader.num_published)
                r.state = RequestState.RUNNING
                self.step.residents.append(r)  # on one of the seats that the leader reserved
            else:
                r.state = RequestState.PREEMPTED
                self.waiting.add(r)
            self.planner.on_arrive(r)
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
            prompt = None if group.prompt_logprobs is None else group.take_prompt_logprobs()
            self.deltas.append(SampleDelta(group.asked.request_id, r.sample, new, logprobs, None, None, None, group.num_cached_tokens, prompt))

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
            self.waiting.remove(r)
        else:
            self._returning.discard(r)
            self.claims.leave(r)
        if r.ticket is not None:
            self.blocks.forget(r.ticket)
            r.ticket = None
        self.waiting.began(r)
        r.state = RequestState.FINISHED
        self._num_alive -= 1
        self._gone.append(r.id)
        self.planner.on_leave(r)
        prompt = group.take_prompt_logprobs() if new else None
        self.deltas.append(SampleDelta(group.asked.request_id, r.sample, new, logprobs, reason, stop, error, group.num_cached_tokens, prompt))
        if group.finished:
            group.finish_reason = reason
            del self.groups[group.asked.request_id]
            self.finished.append(group)

    # -- the rest

    @property
    def num_waiting(self) -> int:
        """All that hold no blocks and will want some, wherever they stand: other threads ask while they move from one list to another."""
        return max(0, self._num_alive - len(self.step.residents))

    def _new_id(self) -> int:
        self._num_ids += 1
        self._num_alive += 1
        return self._num_ids

    def audit(self) -> Iterator[str]:
        """Broken invariants, once every request has finished and every step has committed."""
        left = {
            "requests": len(self.groups),
            "residents": len(self.step.resident),
            "alive": self._num_alive,
            "waiting": len(self.waiting.requests) + len(self._returning),
            "queued": self.waiting.num_queued,
            "queued tokens": self.waiting.num_queued_tokens,
            "steps in flight": self.steps_in_flight,
        }
        if any(left.values()):
            yield f"left: {left}"
        if self.step.seats != self.limits.max_num_seqs:
            yield f"{self.step.seats} of {self.limits.max_num_seqs} seats came back"
        yield from self.claims.audit()
        yield from self.blocks.audit()

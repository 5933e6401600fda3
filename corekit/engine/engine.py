"""The loop: drain the inbox, plan a step, submit it, commit the oldest. Knows ids and counts; never text, tensors or HTTP."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from time import perf_counter, sleep

from corekit.api import EngineStats, Executor, FinishReason, Observer, RequestFailed, RequestStats, StepResult, StepStats

from .events import SampleDelta
from .flight import Flight
from .inbox import Abort, Forget
from .request import Group, NewRequest
from .scheduler import Scheduler

log = logging.getLogger(__name__)

STARVED_SECONDS = 0.001
"""Pause after a step in which nothing could move, which only a part that breaks its word can cause."""
MEMORY_SECONDS = 0.1
"""Age at which a busy engine asks its allocator for counts again."""


class Engine:
    """Invariant: at most `executor.max_in_flight` steps are in flight, and they commit in the order of their submission.

    `submit`, `abort`, `forget_prefixes`, `refusal` and the counts may be called from any thread; everything else from the one that steps.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, *, observers: Sequence[Observer] = (), clock: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._observers = list(observers)
        self._clock = clock
        self._inbox: deque[NewRequest | Abort | Forget] = deque()
        self._inbox_lock = threading.Lock()
        self._num_inbox_requests = 0
        self._num_inbox_tokens = 0
        self._flights: deque[Flight] = deque()
        self._constrains = False
        """Some request had a constraint. A look at every row costs, and most engines have no processor."""
        self._num_steps = 0
        self._num_preempted = self._num_swapped = 0  # as the last flight left them
        self._num_free_blocks = scheduler.step.free_blocks  # as of the last step: layers are not asked from other threads
        self._memory, self._memory_time = scheduler.blocks.stats(), 0.0
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0
        self._num_cached_tokens = 0
        self._num_finished: Counter[str] = Counter()

    # -- from any thread

    def submit(self, asked: NewRequest) -> None:
        with self._inbox_lock:
            self._inbox.append(asked)
            self._num_inbox_requests += 1
            self._num_inbox_tokens += len(asked.token_ids)

    def abort(self, request_id: str, *, sample: int | None = None, reason: FinishReason = "abort") -> None:
        with self._inbox_lock:
            self._inbox.append(Abort(request_id, sample, reason))

    def forget_prefixes(self, done: Callable[[int | RequestFailed], None]) -> None:
        with self._inbox_lock:
            self._inbox.append(Forget(done))

    def refusal(self, num_prompt_tokens: int, num_samples: int) -> str | None:
        return self.scheduler.limits.refusal(num_prompt_tokens, num_samples)

    @property
    def num_running(self) -> int:
        return len(self.scheduler.step.resident)

    @property
    def num_waiting(self) -> int:
        with self._inbox_lock:  # no request is between the inbox and the waiting list
            return self.scheduler.num_waiting + self._num_inbox_requests

    @property
    def num_queued(self) -> int:
        """Requests that never ran."""
        with self._inbox_lock:
            return self.scheduler.waiting.num_queued + self._num_inbox_requests

    @property
    def num_queued_tokens(self) -> int:
        with self._inbox_lock:
            return self.scheduler.waiting.num_queued_tokens + self._num_inbox_tokens

    @property
    def idle(self) -> bool:
        return not (self._inbox or self._flights or self.scheduler.groups)

    def stats(self) -> EngineStats:
        scheduler, counts = self.scheduler, self.scheduler.counts
        return EngineStats(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_blocks=scheduler.limits.num_blocks,
            num_free_blocks=self._num_free_blocks,
            block_size=scheduler.limits.block_size,
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_preemptions=counts.num_preemptions,
            num_finished=dict(self._num_finished),
            num_steps=self._num_steps,
            num_host_blocks=scheduler.blocks.num_host_blocks,
            memory=self._memory,
            num_prefix_queries=counts.num_prefix_queries,
            num_prefix_hits=counts.num_prefix_hits,
            num_swap_preemptions=counts.num_swap_preemptions,
            num_swap_refusals=counts.num_swap_refusals,
            num_bytes_to_host=counts.num_bytes_to_host,
            num_bytes_to_device=counts.num_bytes_to_device,
            num_deferred=max(0, scheduler.num_waiting - len(scheduler.waiting.requests)),
        )

    # -- from the thread that steps

    def step(self) -> list[SampleDelta]:
        """One turn of the loop; what it brought the clients."""
        self._drain()
        flights, most = self._flights, self.executor.max_in_flight
        submitted = len(flights) < most and self._submit()
        if flights and (not submitted or len(flights) == most):
            self._commit_oldest()
        elif not submitted and self.scheduler.groups:
            sleep(STARVED_SECONDS)
        self._num_free_blocks = self.scheduler.step.free_blocks
        now = self._clock()
        if not self.scheduler.groups or now - self._memory_time > MEMORY_SECONDS:
            self._memory, self._memory_time = self.scheduler.blocks.stats(), now
        return self._take_deltas()

    def fail_all(self, message: str) -> list[SampleDelta]:
        """End every request with an error. For an engine that will not step again: rows in flight are forgotten."""
        self._drain()
        for request_id in tuple(self.scheduler.groups):
            self.scheduler.end(request_id, sample=None, reason="error", error=message)
        return self._take_deltas()

    def check_health(self) -> None:
        """Raises when the executor can no longer answer."""
        self.executor.check_health()

    def audit(self) -> list[str]:
        """Broken invariants of an idle engine; empty when it is sound."""
        found = list(self.scheduler.audit())
        if self._inbox or self._flights:
            found.append(f"{len(self._inbox)} messages and {len(self._flights)} steps are left")
        return found

    def _drain(self) -> None:
        """In order: an abort that follows its request finds it."""
        while self._inbox:
            with self._inbox_lock:
                message = self._inbox.popleft()
                if isinstance(message, NewRequest):
                    self._num_inbox_requests -= 1
                    self._num_inbox_tokens -= len(message.token_ids)
                    self._constrains = self._constrains or bool(message.constraints)
                    self.scheduler.add(message)
            if isinstance(message, Abort):
                self.scheduler.end(message.request_id, sample=message.sample, reason=message.reason)
            elif isinstance(message, Forget):
                self._forget_prefixes(message)

    def _forget_prefixes(self, asked: Forget) -> None:
        try:
            asked.done(self.scheduler.blocks.forget_prefixes())
        except RequestFailed as refusal:
            asked.done(refusal)

    def _submit(self) -> bool:
        began = perf_counter()
        rows, step_input = self.scheduler.schedule()
        planned = perf_counter()
        if step_input is None:
            return False
        self.executor.submit(step_input)
        submitting = perf_counter() - planned
        step, limits, counts = self.scheduler.step, self.scheduler.limits, self.scheduler.counts
        preempted, swapped = counts.num_preemptions - self._num_preempted, counts.num_swap_preemptions - self._num_swapped
        self._num_preempted, self._num_swapped = counts.num_preemptions, counts.num_swap_preemptions
        masks = None
        if self._constrains and any(row.request.constraint is not None and row.num_samples for row in rows):
            while self._flights:  # a mask follows from every token before it
                self._commit_oldest()
            masks = self.scheduler.masks(rows)
        sampled = perf_counter()
        self.executor.sample(masks)
        flight = Flight(
            number=step_input.number,
            rows=rows,
            num_tokens=limits.max_num_batched_tokens - step.token_budget,
            num_copies=len(step_input.copies),
            num_crossings=sum(source.on_host != target.on_host for source, target in step_input.copies),
            num_preempted=preempted,
            num_swapped=swapped,
            plan_time=began,
            plan_seconds=planned - began,
            submit_seconds=submitting + perf_counter() - sampled,
        )
        self._flights.append(flight)
        return True

    def _commit_oldest(self) -> None:
        self._commit(self._flights[0])
        self._flights.popleft()  # not before: whoever sees an idle engine sees a whole one

    def _commit(self, flight: Flight) -> None:
        began = perf_counter()
        result = self.executor.collect()
        collected = perf_counter()
        scheduler = self.scheduler
        first_delta = len(scheduler.deltas)
        scheduler.commit(flight.rows, result)
        self._learn(flight, result)
        num_output = self._count(scheduler.deltas[first_delta:])
        self._num_steps += 1
        if self._observers:
            stats = StepStats(
                number=flight.number,
                num_rows=len(flight.rows),
                num_tokens=flight.num_tokens,
                num_output_tokens=num_output,
                num_preempted=flight.num_preempted,
                num_running=self.num_running,
                num_waiting=self.num_waiting,
                num_free_blocks=scheduler.step.free_blocks,
                plan_seconds=flight.plan_seconds,
                submit_seconds=flight.submit_seconds,
                collect_seconds=collected - began,
                commit_seconds=perf_counter() - collected,
                num_swapped=flight.num_swapped,
                num_copies=flight.num_copies,
                memory=self._memory,
                plan_time=flight.plan_time,
                num_blocks=scheduler.limits.num_blocks,
            )
            self._observe("on_step", stats)

    def _learn(self, flight: Flight, result: StepResult) -> None:
        """What computing and copying take. Steps that mostly answer say little about reading prompts, copies within the device nothing of the host."""
        scheduler = self.scheduler
        if flight.num_tokens >= 2 * len(flight.rows):
            scheduler.rates.computed(flight.num_tokens, result.seconds - result.copy_seconds)
        if flight.num_crossings and flight.num_crossings == flight.num_copies:
            scheduler.rates.copied(flight.num_crossings * scheduler.limits.bytes_per_block, result.copy_seconds)

    def _count(self, deltas: Sequence[SampleDelta]) -> int:
        now, groups, num_output = self._clock(), self.scheduler.groups, 0
        for delta in deltas:
            num_output += len(delta.token_ids)
            group = groups.get(delta.request_id)
            if group is not None and group.first_token_time is None:
                group.first_token_time = now
        self._num_output_tokens += num_output
        return num_output

    def _take_deltas(self) -> list[SampleDelta]:
        scheduler = self.scheduler
        deltas, scheduler.deltas = scheduler.deltas, []
        if scheduler.finished:
            finished, scheduler.finished = scheduler.finished, []
            for group in finished:
                self._close(group)
                group.samples.clear()  # they refer to it: what has left need not wait for the garbage collector
        return deltas

    def _close(self, group: Group) -> None:
        asked, now = group.asked, self._clock()
        self._num_finished[group.finish_reason] += 1
        if group.admitted_time is not None:
            self._num_prompt_tokens += len(asked.token_ids)
            self._num_cached_tokens += group.num_cached_tokens
        if not self._observers:
            return

        num_output = sum(r.num_output_tokens for r in group.samples)
        if num_output and group.first_token_time is None:  # its first token was its last
            group.first_token_time = now

        def since(moment: float | None) -> float | None:
            return None if moment is None else moment - asked.arrival_time

        self._observe(
            "on_request",
            RequestStats(
                request_id=asked.request_id,
                finish_reason=group.finish_reason,
                num_samples=len(group.samples),
                num_prompt_tokens=len(asked.token_ids),
                num_output_tokens=num_output,
                num_cached_tokens=group.num_cached_tokens,
                num_preemptions=sum(r.num_preemptions for r in group.samples),
                queue_seconds=since(group.admitted_time),
                first_token_seconds=since(group.first_token_time),
                total_seconds=now - asked.arrival_time,
                max_tokens=asked.max_tokens,
                tenant=asked.tenant,
                num_longest_tokens=max((r.num_output_tokens for r in group.samples), default=0),
            ),
        )

    def _observe(self, event: str, stats: StepStats | RequestStats) -> None:
        for observer in tuple(self._observers):
            try:
                getattr(observer, event)(stats)
            except Exception as error:
                log.warning("observer %s raised %r in %s and hears nothing more", type(observer).__name__, error, event)
                self._observers.remove(observer)

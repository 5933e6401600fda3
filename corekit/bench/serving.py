"""Load on an engine or on a server: the repetitions of a workload, and their result. The same for both; only the way to ask differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from .arrivals import Arrivals
from .errors import BenchError
from .load import Ask, closed_loop, open_loop
from .machine import CpuMeter
from .measure import Attempt, Effort, measure
from .progress import Progress
from .result import Result, attempt_facts, noise_remarks, pooled, spreads_of
from .steps import StepLog, step_samples
from .trace import Figures, Trace, figures
from .workload import Request

LATE = 0.02
"""Seconds after its time from which a request that was sent is worth a remark."""


class Work(Protocol):
    """What is asked, repetition by repetition: the same shape with other prompts. A `Workload` or a `Reenacted`."""

    @property
    def name(self) -> str: ...

    @property
    def origin(self) -> str:
        """The file, or how it was made."""
        ...

    @property
    def num_requests(self) -> int: ...

    def repetition(self, number: int) -> tuple[Request, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """What one came to. Times are those of `time.perf_counter`."""

    label: str
    began: float
    ended: float
    figures: Figures
    steps: dict[str, list[float]]
    traces: tuple[Trace, ...]
    """Of the answered requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """One measurement to be made: who is asked, what, when, how often."""

    ask: Ask
    workload: Work
    arrivals: Arrivals
    effort: Effort
    progress: Progress
    steps: StepLog | None = None
    """Of an engine in this process, whose `ask` tells the progress of every token."""
    tolerant: bool = False
    """Failed requests are counted; else the first one ends the benchmark."""
    meter: Callable[[], CpuMeter] = CpuMeter
    remarks: Sequence[str] = ()
    """What a reader must know of the workload."""

    async def run(self) -> list[Attempt[Repetition]]:
        return await measure(self._repetition, self.effort, self.meter)

    async def _repetition(self, number: int, label: str) -> Repetition:
        requests, arrivals = self.workload.repetition(number), self.arrivals
        if self.steps:
            self.steps.take()
        by_token = self.steps is not None
        total = sum(request.num_output_tokens for request in requests) if by_token else len(requests)
        answered = _say_nothing if by_token else self.progress.advance
        async with self.progress.watching(f"{self.workload.name} {label}", total, "output tokens" if by_token else "requests answered"):
            schedule, began = arrivals.schedule(len(requests), number), perf_counter()
            if schedule is not None:
                outcomes = await open_loop(self.ask, requests, schedule, answered)
            else:
                outcomes = await closed_loop(self.ask, requests, arrivals.concurrency or len(requests), answered)
            ended = perf_counter()
        failures = [outcome for outcome in outcomes if isinstance(outcome, BenchError)]
        if failures and not self.tolerant:
            raise failures[0]
        return Repetition(
            label=label,
            began=began,
            ended=ended,
            figures=figures(outcomes),
            steps=step_samples(self.steps.take()) if self.steps else {},
            traces=tuple(outcome for outcome in outcomes if isinstance(outcome, Trace)),
        )


def summarise(bench: str, loading: Loading, attempts: list[Attempt[Repetition]], target: dict[str, Any]) -> Result:
    kept = [attempt.value for attempt in attempts if attempt.kept]
    workload, arrivals, first = loading.workload, loading.arrivals, kept[0].figures
    subject: dict[str, Any] = {"workload": f"{workload.name} ({workload.origin})", "requests": workload.num_requests, **arrivals.facts(workload.num_requests)}
    subject |= {"prompt_tokens": first.num_prompt_tokens, "output_tokens": first.num_output_tokens}
    remarks = [*loading.remarks, *noise_remarks(attempts, loading.effort.max_foreign)]
    num_cached = sum(one.figures.num_cached_tokens for one in kept)
    if num_cached:
        remarks.append(f"{num_cached} prompt tokens of {sum(one.figures.num_prompt_tokens for one in kept)} came from the prefix cache")
    num_failed = sum(one.figures.num_failed for one in kept)
    if num_failed:
        remarks.append(f"{num_failed} requests FAILED; every figure is of the others")
    latencies = pooled([one.figures.samples for one in kept])
    if "late" in latencies and latencies["late"].p99 > LATE:
        remarks.append(f"requests were sent late, p99 {1e3 * latencies['late'].p99:.0f} ms: the client's processor was busy. TTFT and E2E include it")
    return Result(
        bench=bench,
        subject=subject,
        target=target,
        spreads=spreads_of([one.figures.rates() for one in kept]),
        percentiles=latencies,
        steps=pooled([one.steps for one in kept]),
        attempts=[attempt_facts(attempt) | _facts(attempt.value) for attempt in attempts],
        remarks=remarks,
    )


def _say_nothing() -> None:
    pass


def _facts(repetition: Repetition) -> dict[str, Any]:
    found = repetition.figures
    counts = {name: getattr(found, name) for name in ("num_requests", "num_failed", "num_prompt_tokens", "num_cached_tokens", "num_output_tokens")}
    return {**counts, **found.rates(), "percentiles": pooled([found.samples]), "steps": pooled([repetition.steps])}

"""Load on an engine or on a server: the repetitions of a workload, and their result. The same for both; only the way to ask differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import BenchError
from .load import Ask, closed_loop, open_loop
from .machine import CpuMeter
from .measure import Attempt, Effort, measure
from .progress import Progress
from .result import Result, attempt_facts, noise_remarks, pooled, spreads_of
from .steps import StepLog, step_samples
from .trace import Figures, figures
from .workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A closed loop of `concurrency`, or an open loop of `rate` requests per second: exactly one is set."""

    concurrency: int | None = None
    rate: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    figures: Figures
    steps: dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """One measurement to be made: who is asked, what, when, how often."""

    ask: Ask
    workload: Workload
    arrivals: Arrivals
    effort: Effort
    progress: Progress
    steps: StepLog | None = None
    """Of an engine in this process, whose `ask` tells the progress of every token."""
    tolerant: bool = False
    """Failed requests are counted; else the first one ends the benchmark."""
    meter: Callable[[], CpuMeter] = CpuMeter

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
            if arrivals.rate is not None:
                outcomes = await open_loop(self.ask, requests, arrivals.rate, arrivals.seed + number, answered)
            else:
                outcomes = await closed_loop(self.ask, requests, arrivals.concurrency or len(requests), answered)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BenchError)]
        if failures and not self.tolerant:
            raise failures[0]
        return Repetition(figures=figures(outcomes), steps=step_samples(self.steps.take()) if self.steps else {})


def summarise(bench: str, loading: Loading, attempts: list[Attempt[Repetition]], target: dict[str, Any]) -> Result:
    kept = [attempt.value for attempt in attempts if attempt.kept]
    workload, arrivals, first = loading.workload, loading.arrivals, kept[0].figures
    subject: dict[str, Any] = {"workload": f"{workload.name} ({workload.origin})", "requests": len(workload.repetitions[0])}
    subject |= {"rate": arrivals.rate, "seed": arrivals.seed} if arrivals.rate is not None else {"concurrency": arrivals.concurrency or subject["requests"]}
    subject |= {"prompt_tokens": first.num_prompt_tokens, "output_tokens": first.num_output_tokens}
    remarks = noise_remarks(attempts, loading.effort.max_foreign)
    num_cached = sum(one.figures.num_cached_tokens for one in kept)
    if num_cached:
        remarks.append(f"{num_cached} prompt tokens of {sum(one.figures.num_prompt_tokens for one in kept)} came from the prefix cache")
    num_failed = sum(one.figures.num_failed for one in kept)
    if num_failed:
        remarks.append(f"{num_failed} requests FAILED; every figure is of the others")
    return Result(
        bench=bench,
        subject=subject,
        target=target,
        spreads=spreads_of([one.figures.rates() for one in kept]),
        percentiles=pooled([one.figures.samples for one in kept]),
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

"""What a step costs without a model: many running and waiting requests, and an executor that answers at once.

The real client's thread runs the real loop; only the executor is this file's own. Knows the engine's door (`submit`, `abort`) and its
observers; puts a stopwatch around the policy that was chosen.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from corekit.api import KvPlan, RequestStats, RowMasks, SamplingParams, SchedulerPolicy, StepInput, StepPlan, StepResult, StepStats
from corekit.engine.request import NewRequest

from .errors import BenchError
from .machine import CpuMeter
from .measure import Attempt, Effort, measure
from .progress import PATIENCE, Progress
from .result import Result, attempt_facts, noise_remarks, pooled, spreads_of

if TYPE_CHECKING:
    from corekit.compose.assembly import Assembly

SHORTEST_PROMPT = 20
LONGEST_PROMPT = 40
PATIENCE_LIMIT = 120.0
"""Seconds without a step after which the engine is taken for stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Requests that neither finish nor move while steps are measured: exactly `num_running` decode, the others wait for a seat."""

    num_running: int
    num_waiting: int
    num_steps: int
    """Steps of one repetition."""

    def max_tokens(self, effort: Effort) -> int:
        """More than all steps there can be: nothing runs between repetitions."""
        return (self.num_steps + 2) * (effort.warmup + effort.reps * (1 + effort.retries)) + 2

    def settings(self, effort: Effort, block_size: int) -> dict[str, Any]:
        """Configuration, by dotted key: room for all of it, and no worker that costs anything."""
        longest = LONGEST_PROMPT + self.max_tokens(effort)
        return {
            "model.source": "none",
            "model.use": "scripted",
            "tokenizer.use": "bytes",
            "scheduler.max_num_seqs": self.num_running,
            "scheduler.max_num_batched_tokens": self.num_running * LONGEST_PROMPT,
            "scheduler.watermark": 0.0,
            "block_allocator.num_blocks": self.num_running * (longest // block_size + 2),
        }

    def requests(self, effort: Effort) -> Iterator[NewRequest]:
        """All different from the second token on, so that a prefix cache has work and nothing to share."""
        params, max_tokens, now = SamplingParams(temperature=0.0, ignore_eos=True), self.max_tokens(effort), perf_counter()
        for i in range(self.num_running + self.num_waiting):
            length = SHORTEST_PROMPT + i % (LONGEST_PROMPT - SHORTEST_PROMPT)
            token_ids = (i % 250, i // 250 % 250, *([i % 7] * (length - 2)))
            yield NewRequest(request_id=f"bench-{i}", token_ids=token_ids, params=params, max_tokens=max_tokens, seed=0, end_ids=(), arrival_time=now)


class InstantExecutor:
    """One token for every sample that draws, at once. No worker, no memory.

    Invariant: it answers only while the gate is open, so that the loop rests while nobody measures: a thread that never pauses
    would starve those that look at the machine.
    """

    max_in_flight = 1
    max_draft_tokens = 0

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate
        self._results: deque[StepResult] = deque()

    def free_memory(self) -> int:
        return 1 << 50

    def bytes_per_block(self, kv_dtype: str) -> int:
        return 1

    def allocate_kv(self, plan: KvPlan) -> None:
        pass

    def submit(self, step: StepInput) -> None:
        self._results.append(StepResult(tokens=tuple([((1,),) * row.num_samples for row in step.rows])))

    def sample(self, masks: RowMasks | None) -> None:
        pass

    def collect(self) -> StepResult:
        self._gate.wait()
        return self._results.popleft()

    def check_health(self) -> None:
        pass

    def shutdown(self) -> None:
        self._results.clear()


class TimedPolicy:
    """The policy it wraps, with a stopwatch."""

    def __init__(self, inner: SchedulerPolicy) -> None:
        self._plan = inner.plan
        self.seconds = 0.0
        """Of the last plan. One step is in flight at most, so at its commit this is its own."""

    def plan(self, step: StepPlan) -> None:
        began = perf_counter()
        self._plan(step)
        self.seconds = perf_counter() - began


class StepWindow:
    """An observer that opens the gate for a number of steps, keeps them, and closes it again."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.policy: TimedPolicy | None = None
        self._kept: list[tuple[StepStats, float, float]] = []
        self._wanted = 0
        self._full = threading.Event()

    def on_step(self, stats: StepStats) -> None:
        if len(self._kept) < self._wanted:
            self._kept.append((stats, self.policy.seconds if self.policy else 0.0, perf_counter()))
            if len(self._kept) == self._wanted:
                self.gate.clear()
                self._full.set()

    def on_request(self, stats: RequestStats) -> None:
        pass

    def fill(self, num_steps: int, reached: Callable[[int], None]) -> list[tuple[StepStats, float, float]]:
        """The next steps: each with the seconds of its policy and the moment it was heard of."""
        self._kept, self._wanted = [], num_steps
        self._full.clear()
        began = perf_counter()
        self.gate.set()
        while not self._full.wait(PATIENCE):
            reached(len(self._kept))
            if not self._kept and perf_counter() - began > PATIENCE_LIMIT:
                raise BenchError(f"the engine made no step in {PATIENCE_LIMIT:g} s")
        return self._kept


@contextmanager
def collector_pauses() -> Iterator[list[tuple[int, float]]]:
    """(generation, seconds) of every collection meanwhile. They run in the thread that allocates, which is the one that steps."""
    pauses: list[tuple[int, float]] = []
    began = 0.0

    def watch(phase: str, facts: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = perf_counter()
        else:
            pauses.append((facts["generation"], perf_counter() - began))

    gc.callbacks.append(watch)
    try:
        yield pauses
    finally:
        gc.callbacks.remove(watch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One repetition: seconds of each phase step by step, and what does not come once per step."""

    phases: dict[str, list[float]]
    pauses: list[tuple[int, float]]

    def rates(self) -> dict[str, float]:
        return {
            "steps_per_second": len(self.phases["loop"]) / sum(self.phases["loop"]),
            "young_collections": float(sum(generation < 2 for generation, _ in self.pauses)),
            "full_collections": float(sum(generation == 2 for generation, _ in self.pauses)),
        }

    def samples(self) -> dict[str, list[float]]:
        return {**self.phases, "collector_pause": [seconds for _, seconds in self.pauses]}


class Planning:
    """One measurement of an assembly made with `Population.settings`, an InstantExecutor and this window as an observer."""

    def __init__(self, assembly: Assembly, window: StepWindow, population: Population, effort: Effort, progress: Progress) -> None:
        self._assembly = assembly
        self._window = window
        self._population = population
        self._effort = effort
        self._progress = progress

    async def run(self) -> Result:
        engine = self._assembly.engine
        engine.scheduler.planner.policy = self._window.policy = TimedPolicy(engine.scheduler.planner.policy)
        ids = []
        for request in self._population.requests(self._effort):
            ids.append(request.request_id)
            engine.submit(request)
        self._assembly.start()
        try:
            attempts = await measure(self._repetition, self._effort, CpuMeter)
        finally:
            self._window.gate.set()
            for request_id in ids:  # nobody else knows of them, so closing alone would wait for their ends
                engine.abort(request_id)
        return self._summarise(attempts)

    async def _repetition(self, number: int, label: str) -> Planned:
        """Blocks this loop, which has nothing else to do: the thread that steps must not share the interpreter with a clock."""
        self._progress.begin(f"engine {label}", self._population.num_steps, "steps")
        with collector_pauses() as pauses:
            kept = self._window.fill(self._population.num_steps + 1, self._progress.reach)
        wanted = (self._population.num_running, self._population.num_waiting)
        for stats, _, _ in kept:
            if (stats.num_running, stats.num_waiting) != wanted:
                raise BenchError(f"step {stats.number} had {stats.num_running} running and {stats.num_waiting} waiting, not {wanted[0]} and {wanted[1]}")
        heard = [moment for _, _, moment in kept]
        steps = kept[1:]  # the first waited at the gate
        return Planned(
            phases={
                "plan": [plan for _, plan, _ in steps],
                "step_input": [stats.plan_seconds - plan for stats, plan, _ in steps],
                "executor": [stats.submit_seconds + stats.collect_seconds for stats, _, _ in steps],
                "commit": [stats.commit_seconds for stats, _, _ in steps],
                "in_all": [stats.plan_seconds + stats.commit_seconds for stats, _, _ in steps],
                "loop": [later - earlier for earlier, later in pairwise(heard)],
            },
            pauses=pauses,
        )

    def _summarise(self, attempts: list[Attempt[Planned]]) -> Result:
        kept = [attempt.value for attempt in attempts if attempt.kept]
        population = self._population
        return Result(
            bench="engine",
            subject={"running": population.num_running, "waiting": population.num_waiting, "steps_per_repetition": population.num_steps},
            target={"engine": self._assembly.summary()},
            spreads=spreads_of([one.rates() for one in kept]),
            percentiles={},
            steps=pooled([one.samples() for one in kept]),
            attempts=[attempt_facts(attempt) | attempt.value.rates() | {"steps": pooled([attempt.value.samples()])} for attempt in attempts],
            remarks=noise_remarks(attempts, self._effort.max_foreign) + collection_remarks(kept),
        )


def collection_remarks(kept: Sequence[Planned]) -> list[str]:
    """The engine makes a full collection between two steps once a minute or after very much work: a short measurement meets one by chance."""
    pauses = [seconds for one in kept for generation, seconds in one.pauses if generation == 2]
    if not pauses:
        return []
    longest = f"the longest took {1e3 * max(pauses):.1f} ms"
    return [f"FULL COLLECTIONS: {len(pauses)} in the kept repetitions, {longest}; the slowest steps and the loop hold them, repeat to see them without"]

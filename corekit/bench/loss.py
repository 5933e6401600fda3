"""Part `loss` of `bench prefix`: what the allocator layers cost a workload that never hits, beside the bottom layer alone.

Two engines in this process take turns; while one works the other sleeps. Asks their clients and hears their observers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from time import process_time
from typing import TYPE_CHECKING, Any

from .ask import ask_engine, check_fits, vocab_size
from .errors import BenchError
from .found import Found, interval_row
from .load import closed_loop
from .machine import CpuMeter
from .measure import Effort, measure
from .progress import Progress
from .stacks import NO_HOST, Stacks, names
from .steps import StepLog
from .trace import figures
from .workload import Request, Workload

if TYPE_CHECKING:
    from corekit.api import EngineClient
    from corekit.compose.parts import Part

    from .verbs import Configure


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct:
    """Requests that share nothing, all at once."""

    num_requests: int = 8
    num_prompt_tokens: int = 256
    num_output_tokens: int = 32
    seed: int

    def settings(self, block_size: int) -> dict[str, Any]:
        """A pool that two rounds fill, so that every further block evicts another."""
        return {**NO_HOST, "block_allocator.num_blocks": 2 * self.num_requests * (-(-(self.num_prompt_tokens + self.num_output_tokens) // block_size) + 1)}

    def round(self, number: int, num_ids: int) -> tuple[Request, ...]:
        random = Random(f"loss {self.seed} {number}")
        return tuple(
            Request(token_ids=tuple(random.randrange(num_ids) for _ in range(self.num_prompt_tokens)), text=None, num_output_tokens=self.num_output_tokens)
            for _ in range(self.num_requests)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """By one engine on one round, in seconds."""

    wall: float
    cpu: float
    """Of this process, all threads."""
    planning: float
    """Of `wall`: planning and committing, where the layers work."""


class Engines:
    """The engine with all layers, and the one with the bottom alone."""

    def __init__(self, undo: ExitStack, configure: Configure, stacks: Stacks, workload: Distinct, progress: Progress) -> None:
        from corekit.compose.assemble import assemble

        def engine(layers: Sequence[Part]) -> tuple[EngineClient, StepLog, list[str]]:
            steps, config = StepLog(), configure(workload.settings(stacks.block_size))
            assembly = undo.enter_context(assemble(config, block_allocator=stacks.provider(layers), frontends=(), observers=(steps,)))
            return assembly.client, steps, assembly.summary()

        self._engines = [engine(stacks.device), engine(stacks.bottom)]
        client = self._engines[0][0]
        self._num_ids = vocab_size(client)
        self._workload = workload
        self._progress = progress
        check_fits(client, Workload(name="loss", origin="built in", repetitions=(workload.round(0, self._num_ids),)))

    @property
    def summary(self) -> list[str]:
        return self._engines[0][2]

    async def pair(self, number: int, label: str) -> tuple[Spent, Spent]:
        """(with all layers, with the bottom alone) on the same prompts, which neither has seen; who begins changes from pair to pair."""
        requests = self._workload.round(number, self._num_ids)
        async with self._progress.watching(f"loss {label}", 2 * len(requests), "requests"):
            if number % 2:
                bottom, layered = await self._spent(1, requests), await self._spent(0, requests)
            else:
                layered, bottom = await self._spent(0, requests), await self._spent(1, requests)
        return layered, bottom

    async def _spent(self, which: int, requests: Sequence[Request]) -> Spent:
        client, steps, _ = self._engines[which]
        steps.take()
        began = process_time()
        found = figures(await closed_loop(ask_engine(client, lambda new: None), requests, len(requests), self._progress.advance))
        cpu = process_time() - began
        if found.num_failed or found.num_cached_tokens:
            raise BenchError(f"{found.num_failed} requests failed and {found.num_cached_tokens} tokens were cached, in a workload without hits")
        planning = sum(step.plan_seconds + step.commit_seconds for step in steps.take())
        return Spent(wall=found.seconds, cpu=cpu, planning=planning)


async def loss(configure: Configure, stacks: Stacks, workload: Distinct, effort: Effort, progress: Progress) -> Found:
    with ExitStack() as undo:
        engines = Engines(undo, configure, stacks, workload, progress)
        attempts = await measure(engines.pair, effort, CpuMeter)
        summary = engines.summary
    pairs = [attempt.value for attempt in attempts if attempt.kept]
    rows = [
        interval_row("duration, with / without", [layered.wall / bottom.wall for layered, bottom in pairs]),
        interval_row("CPU time, with / without", [layered.cpu / bottom.cpu for layered, bottom in pairs]),
        interval_row("planning and committing, % of duration, with", [100 * layered.planning / layered.wall for layered, _ in pairs]),
        interval_row("planning and committing, % of duration, without", [100 * bottom.planning / bottom.wall for _, bottom in pairs]),
        interval_row("planning and committing, % of duration, more", [100 * (layered.planning - bottom.planning) / bottom.wall for layered, bottom in pairs]),
    ]
    shape = f"{workload.num_requests} requests of {workload.num_prompt_tokens} + {workload.num_output_tokens} tokens without a hit"
    return Found(sections={f"loss, {shape}, {names(stacks.device)} / {names(stacks.bottom)}": rows}, attempts=attempts, target={"engine": summary})

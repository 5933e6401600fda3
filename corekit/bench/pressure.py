"""Part `pressure` of `bench memory`: requests on a pool that holds a few of them, by each way of preemption. Asks engines' clients.

What is preempted must come back as it was: the tokens are compared with those of a pool that holds all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from corekit.api import Prompt, SamplingParams

from .answered import Answered, compared
from .ask import vocab_size
from .errors import BenchError, BenchUsage
from .found import Found, alone
from .machine import CpuMeter
from .measure import Attempt, Effort, measure
from .progress import Progress
from .result import Row
from .stacks import NO_MODEL, Stacks, names
from .steps import StepLog

if TYPE_CHECKING:
    from corekit.api import EngineClient
    from corekit.compose.parts import Part

    from .verbs import Configure

EXACT: Mapping[str, Any] = {**NO_MODEL, "model.use": "fingerprint"}
"""A model whose tokens show any wrong block, and do not depend on the shapes of matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Requests that are asked at once, and how many of them the pool holds to their end."""

    num_requests: int = 8
    num_held: int = 3
    num_prompt_tokens: int = 64
    num_output_tokens: int = 64
    seed: int

    def span(self, block_size: int) -> int:
        return -(-(self.num_prompt_tokens + self.num_output_tokens) // block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A stack, and `[scheduler] preemption`; None: a pool that holds all."""

    layers: tuple[Part, ...]
    preemption: str | None


@dataclass(kw_only=True)
class Pressure:
    """One model in every way. Ways run one after the other, each in an engine of its own."""

    configure: Configure
    stacks: Stacks
    crowd: Crowd
    effort: Effort
    progress: Progress
    attempts: list[Attempt[Answered]] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)

    async def rows(self, settings: Mapping[str, Any], *, exact: bool) -> list[Row]:
        """exact: raises BenchError where tokens differ. What others disturb is not measured again: all ways answer the same prompts."""
        free, ways = Way(layers=self.stacks.device, preemption=None), list(self._ways())
        expected = await self._run(free, settings)
        rows = [self._row(free, expected, expected, exact=exact)]
        for way in ways:
            answered = await self._run(way, settings)
            rows.append(self._row(way, answered, expected, exact=exact))
        return rows

    def _ways(self) -> Iterator[Way]:
        num_host_blocks = self.crowd.num_requests * self.crowd.span(self.stacks.block_size)
        device, bottom = self.stacks.device, self.stacks.bottom
        for layers in (device, bottom) if len(device) > 1 else (device,):
            hosted = self.stacks.over_host(layers, num_host_blocks)
            yield Way(layers=layers, preemption="recompute")
            yield Way(layers=hosted, preemption="swap")
            yield Way(layers=hosted, preemption="auto")

    async def _run(self, way: Way, settings: Mapping[str, Any]) -> list[Answered]:
        from corekit.compose.assemble import assemble

        steps, crowd, span = StepLog(), self.crowd, self.crowd.span(self.stacks.block_size)
        num_held = crowd.num_requests if way.preemption is None else crowd.num_held
        config = self.configure(
            {
                **settings,
                "scheduler.max_num_seqs": crowd.num_requests,
                "scheduler.watermark": 0.0,
                "scheduler.preemption": way.preemption or "recompute",
                "block_allocator.num_blocks": num_held * span,
            }
        )
        with assemble(config, block_allocator=self.stacks.provider(way.layers), frontends=(), observers=(steps,)) as assembly:
            self.summary = self.summary or assembly.summary()
            client, label = assembly.client, f"pressure, {way.preemption or 'none'}, {names(way.layers)}"
            if crowd.num_prompt_tokens + crowd.num_output_tokens > client.model.max_model_len:
                raise BenchUsage(f"pressure: {crowd.num_prompt_tokens} + {crowd.num_output_tokens} tokens do not fit into {client.model.max_model_len}")
            num_ids = vocab_size(client)
            for _ in range(self.effort.warmup):
                await self._round(client, steps, num_ids, replace(crowd, num_requests=1), 0, f"{label}, warm-up")  # of one: the others would do the same again
            attempts = await measure(
                lambda number, which: self._round(client, steps, num_ids, crowd, number, f"{label}, {which}"),
                replace(self.effort, warmup=0, retries=0),
                CpuMeter,
            )
        self.attempts += attempts
        return [attempt.value for attempt in attempts if attempt.kept]

    async def _round(self, client: EngineClient, log: StepLog, num_ids: int, crowd: Crowd, number: int, label: str) -> Answered:
        random = Random(f"pressure {crowd.seed} {number}")
        prompts = [Prompt(token_ids=tuple(random.randrange(num_ids) for _ in range(crowd.num_prompt_tokens))) for _ in range(crowd.num_requests)]
        params = SamplingParams(temperature=0.0, max_tokens=crowd.num_output_tokens, ignore_eos=True)

        async def answer(prompt: Prompt) -> tuple[int, ...]:
            ids: list[int] = []
            async for output in client.generate(prompt, params):
                new = [id for sample in output.outputs for id in sample.token_ids]
                ids += new
                self.progress.advance(len(new))
            return tuple(ids)

        log.take()
        before, cpu, began = client.stats(), process_time(), perf_counter()
        async with self.progress.watching(label, crowd.num_requests * crowd.num_output_tokens, "output tokens"):
            tokens = await asyncio.gather(*map(answer, prompts))
        seconds, cpu = perf_counter() - began, process_time() - cpu
        if any(len(ids) != crowd.num_output_tokens for ids in tokens):
            raise BenchError(f"{label}: answers have {sorted(map(len, tokens))} tokens, each was to have {crowd.num_output_tokens}: the engine miscounted")
        return Answered(tokens=tuple(tokens), seconds=seconds, cpu=cpu, steps=log.take(), before=before, after=client.stats())

    def _row(self, way: Way, answered: Sequence[Answered], expected: Sequence[Answered], *, exact: bool) -> Row:
        label = f"pressure, {way.preemption or 'none'}, {names(way.layers)}"
        found = compared(label, answered, expected, pressed=way.preemption is not None, exact=exact)
        return {"preemption": way.preemption or "no pressure", "stack": names(way.layers), **found}


async def pressure(configure: Configure, stacks: Stacks, crowd: Crowd, effort: Effort, progress: Progress) -> Found:
    """The configured model, and one that is exact whatever the batch."""
    asked = Pressure(configure=configure, stacks=stacks, crowd=crowd, effort=effort, progress=progress)
    rows = await asked.rows({}, exact=False)
    proof = Pressure(configure=configure, stacks=stacks, crowd=crowd, effort=alone(effort.max_foreign), progress=progress)
    proved = await proof.rows(EXACT, exact=True)
    shape = f"{crowd.num_requests} requests of {crowd.num_prompt_tokens} + {crowd.num_output_tokens} tokens on a pool for {crowd.num_held}"
    differ = [f"{row['preemption']}, {row['stack']}" for row in rows if row["same_answers"] != rows[0]["same_answers"]]
    remarks = [f"answers of this model differ by the way of preemption: {'; '.join(differ)}"] if differ else []
    return Found(
        sections={f"pressure, {shape}": rows, "the same on fingerprint, whose tokens do not depend on the batch": proved},
        attempts=asked.attempts,
        target={"engine": asked.summary},
        remarks=remarks,
    )

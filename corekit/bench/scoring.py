"""Scores windows of a text on an engine in this process, through its client: whole chunks of a prompt, or one token of each of several.

Kernels differ by how many tokens a step has, and so may their rounding. A prompt of which every step computes one token goes the
way that generated tokens go: its rows are what decoding makes, only that the next token is the text's and not a drawn one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from corekit.api import EngineClient, Prompt, RequestFailed, RequestStats, SamplingParams, StepPlan, StepStats

from .agreement import Scored
from .english import Windows
from .errors import BenchError
from .progress import Progress
from .steps import StepLog

NUM_PREFILLS = 2
"""Prompts in flight where whole chunks are computed: while one waits for its results the other fills the step."""
NUM_WARM = 16
"""Tokens of the prompts that warm up."""
ASKED = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=1)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the steps look like. num_rows: how many rows of one token stand side by side; 0: prefill, in chunks as configured."""

    num_rows: int

    @property
    def concurrency(self) -> int:
        return self.num_rows or NUM_PREFILLS

    def __str__(self) -> str:
        return "prefill" if not self.num_rows else f"{self.num_rows} row{'s' if self.num_rows > 1 else ''}"


PREFILL = Shape(0)


class Strides:
    """A policy: first come, first served, at most `most` tokens of each request in a step; 0: what the configuration allows.

    `most` changes between rounds only, while nothing runs.
    """

    def __init__(self) -> None:
        self.most = 0

    def plan(self, step: StepPlan) -> None:
        for request in (*step.running, *step.waiting):
            step.schedule(request, self.most or None)


class Watch:
    """An observer: keeps the news of steps, and says how far they are."""

    def __init__(self, progress: Progress) -> None:
        self.log = StepLog()
        self._progress = progress

    def on_step(self, stats: StepStats) -> None:
        self.log.on_step(stats)
        self._progress.advance(stats.num_tokens)

    def on_request(self, stats: RequestStats) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """All windows, scored in one shape."""

    scored: tuple[Scored, ...]
    num_tokens: int
    """Computed: windows that only filled the last steps included."""
    num_steps: int
    num_rows: int
    """Of all steps together."""
    seconds: float


def room(windows_size: int, shapes: Sequence[Shape], block_size: int) -> dict[str, Any]:
    """Configuration values by dotted key: room for every window of the widest shape, so that nobody gives way."""
    most = max(shape.concurrency for shape in shapes)
    return {
        "scheduler.max_num_seqs": most,
        "scheduler.watermark": 0.0,
        "block_allocator.num_blocks": most * (-(-(windows_size + ASKED_TOKENS) // block_size) + 1),
    }


ASKED_TOKENS = 1
"""Every request draws one token: there is none that draws nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """One engine, made with `room`, `policy` and `watch`."""

    client: EngineClient
    policy: Strides
    watch: Watch
    progress: Progress

    async def warm(self, windows: Windows, shape: Shape) -> None:
        prompts = [prompt[:NUM_WARM] for prompt in windows.prompts[: shape.concurrency]]
        await self._answer(prompts, shape, "warm-up")

    async def run(self, windows: Windows, shape: Shape, label: str) -> Round:
        """Raises RequestFailed where the model gave no score, BenchError where the steps did not have the shape."""
        prompts = list(windows.prompts)
        while shape.num_rows and len(prompts) % shape.num_rows:  # so that the last steps are as wide as all others
            prompts.append(prompts[len(prompts) - len(windows.prompts)])
        self.watch.log.take()
        began = perf_counter()
        answers = await self._answer(prompts, shape, label)
        seconds = perf_counter() - began
        steps = self.watch.log.take()
        num_tokens = sum(map(len, prompts))
        check_steps(steps, shape, num_tokens)
        return Round(
            scored=tuple(scored(answer, windows.num_given, at) for at, answer in enumerate(answers[: len(windows.prompts)])),
            num_tokens=num_tokens,
            num_steps=len(steps),
            num_rows=sum(step.num_rows for step in steps),
            seconds=seconds,
        )

    async def _answer(self, prompts: Sequence[tuple[int, ...]], shape: Shape, label: str) -> list[Any]:
        """The logprobs of every prompt."""
        self.policy.most = 1 if shape.num_rows else 0
        answers: list[Any] = [None] * len(prompts)
        waiting = iter(enumerate(prompts))

        async def ask_in_turn() -> None:
            for at, ids in waiting:
                async for output in self.client.generate(Prompt(token_ids=ids), ASKED):
                    answers[at] = output.prompt_logprobs or answers[at]

        async with self.progress.watching(label, sum(map(len, prompts)), "tokens"):
            await asyncio.gather(*(ask_in_turn() for _ in range(shape.concurrency)))
        return answers


def scored(logprobs: Any, num_given: int, number: int) -> Scored:
    """What an answer says of the tokens of window `number` that count."""
    if logprobs is None:
        raise BenchError(f"window {number} was answered without the logprobs of its prompt")
    shown = logprobs[num_given:]
    for at, one in enumerate(shown, num_given):
        if not math.isfinite(one.logprob):
            raise RequestFailed(f"token {at} of window {number} has the log-probability {one.logprob}, so there is no perplexity")
    return Scored(logprobs=tuple(one.logprob for one in shown), likeliest=tuple(one.top[0][0] for one in shown))


def check_steps(steps: Sequence[StepStats], shape: Shape, num_tokens: int) -> None:
    """Raises BenchError where what was computed is not what was to be measured."""
    computed = sum(step.num_tokens for step in steps)
    if computed != num_tokens:
        raise BenchError(f"{shape}: {computed} tokens were computed, the windows have {num_tokens}: something was cached, preempted or lost")
    for step in steps:
        if shape.num_rows and step.num_tokens != step.num_rows:
            raise BenchError(f"{shape}: step {step.number} computed {step.num_tokens} tokens of {step.num_rows} rows, so it is no step of one token a row")

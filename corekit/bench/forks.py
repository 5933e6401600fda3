"""Part `samples` of `bench memory`: KV blocks that n samples of one prompt use at the peak, beside one. Asks an engine's client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any

from corekit.api import Prompt, SamplingParams, SchedulerPolicy, StepPlan

from .ask import vocab_size
from .errors import BenchError, BenchUsage
from .found import Found, alone
from .machine import CpuMeter
from .measure import measure
from .progress import Progress
from .result import Row
from .stacks import NO_HOST, Stacks, names

if TYPE_CHECKING:
    from corekit.compose.assembly import Assembly

    from .verbs import Configure


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    num_prompt_tokens: int = 1000
    num_output_tokens: int = 64
    counts: Sequence[int] = (1, 10)
    seed: int

    def settings(self, block_size: int) -> dict[str, Any]:
        """Room for all samples even if they shared nothing: what is counted is what they need, not what there is."""
        span = -(-(self.num_prompt_tokens + self.num_output_tokens) // block_size) + 1
        most = max(self.counts)
        return {**NO_HOST, "block_allocator.num_blocks": most * span, "scheduler.max_num_seqs": most}


class PeakPolicy:
    """The policy that it wraps. `peak` is the most blocks that were used once a step was planned: nothing takes any at other times."""

    def __init__(self, inner: SchedulerPolicy, num_blocks: int) -> None:
        self._plan = inner.plan
        self._num_blocks = num_blocks
        self.peak = 0

    def plan(self, step: StepPlan) -> None:
        self._plan(step)
        self.peak = max(self.peak, self._num_blocks - step.free_blocks)


async def samples(configure: Configure, stacks: Stacks, asked: Samples, progress: Progress, max_foreign: float) -> Found:
    from corekit.compose.assemble import assemble

    async def run(number: int, label: str) -> list[Row]:
        return [await _used(assembly, policy, asked, count, progress) for count in asked.counts]

    with assemble(configure(asked.settings(stacks.block_size)), block_allocator=stacks.provider(stacks.device), frontends=()) as assembly:
        if asked.num_prompt_tokens + asked.num_output_tokens > assembly.client.model.max_model_len:
            raise BenchUsage(
                f"samples: {asked.num_prompt_tokens} + {asked.num_output_tokens} tokens are beyond the context of {assembly.client.model.max_model_len}. "
                "Raise model.max_model_len, or leave the part out with --only."
            )
        planner = assembly.engine.scheduler.planner
        planner.policy = policy = PeakPolicy(planner.policy, assembly.pool.num_blocks)
        attempts = await measure(run, alone(max_foreign), CpuMeter)
        summary = assembly.summary()
    rows = [{**row, "of_one": row["peak_blocks"] / attempts[0].value[0]["peak_blocks"]} for row in attempts[0].value]
    title = f"samples of a prompt of {asked.num_prompt_tokens:,} tokens, {asked.num_output_tokens} generated each, {names(stacks.device)}"
    return Found(sections={title: rows}, attempts=attempts, target={"engine": summary})


async def _used(assembly: Assembly, policy: PeakPolicy, asked: Samples, count: int, progress: Progress) -> Row:
    client, size = assembly.client, assembly.pool.block_size
    random, num_ids = Random(f"samples {asked.seed} {count}"), vocab_size(client)
    prompt = Prompt(token_ids=tuple(random.randrange(num_ids) for _ in range(asked.num_prompt_tokens)))
    params = SamplingParams(n=count, temperature=1.0, seed=asked.seed, max_tokens=asked.num_output_tokens, ignore_eos=True)
    policy.peak, num_output, began = 0, 0, perf_counter()
    async with progress.watching(f"samples n = {count}", count * asked.num_output_tokens, "output tokens"):
        async for output in client.generate(prompt, params):
            new = sum(len(sample.token_ids) for sample in output.outputs)
            num_output += new
            progress.advance(new)
    if num_output != count * asked.num_output_tokens:
        raise BenchError(f"{count} samples of {asked.num_output_tokens} tokens gave {num_output}: the engine miscounted")
    span = -(-(asked.num_prompt_tokens + asked.num_output_tokens - 1) // size)  # the last token of an answer is never written
    return {"n": count, "peak_blocks": policy.peak, "blocks_if_nothing_were_shared": count * span, "seconds": perf_counter() - began}

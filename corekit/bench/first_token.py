"""Part `ttft` of `bench prefix`: how much sooner the first token comes when the prefix of the prompt is cached. Asks an engine's client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from .ask import ask_engine, vocab_size
from .errors import BenchError, BenchUsage
from .found import Found, interval_row
from .machine import CpuMeter
from .measure import Effort, measure
from .progress import Progress
from .stacks import NO_HOST, Stacks, names
from .trace import Trace
from .workload import Request

if TYPE_CHECKING:
    from corekit.api import EngineClient

    from .verbs import Configure


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Tokens that two prompts share, tokens that each has of its own, and the seed of both."""

    num_shared: int = 1024
    num_own: int = 32
    seed: int

    def settings(self, block_size: int) -> dict[str, Any]:
        """Room for three of them: one that was asked before, one that is asked, and some to spare."""
        return {**NO_HOST, "block_allocator.num_blocks": 3 * (-(-(self.num_shared + self.num_own + 1) // block_size) + 1)}


class FirstToken:
    """Invariant: the prefix `_known` was the last that anybody computed, so it is in the cache."""

    def __init__(self, client: EngineClient, prompts: Prompts, progress: Progress, block_size: int) -> None:
        needed = prompts.num_shared + prompts.num_own + 1
        if needed > client.model.max_model_len:
            raise BenchUsage(
                f"--shared {prompts.num_shared}: with {prompts.num_own} own tokens and the answer they need {needed} positions, the context of "
                f"{client.model.name} has {client.model.max_model_len}. Share fewer tokens, or raise model.max_model_len."
            )
        self._ask = ask_engine(client, lambda new: None)
        self._prompts = prompts
        self._progress = progress
        self._num_cached = prompts.num_shared // block_size * block_size
        self._num_ids = vocab_size(client)
        self._random = Random(f"first token {prompts.seed}")
        self._known: Sequence[int] = ()

    async def prime(self) -> None:
        """The first prefix, so that the first pair has one to hit."""
        self._known = self._fresh(self._prompts.num_shared)
        async with self._progress.watching("ttft, first prefix", 1, "requests"):
            await self._asked(self._known, 0)

    async def pair(self, number: int, label: str) -> tuple[Trace, Trace]:
        """(without a hit, with one); which of them is asked first changes from pair to pair."""
        known, unknown = self._known, self._fresh(self._prompts.num_shared)
        async with self._progress.watching(f"ttft {label}", 2, "requests"):
            if number % 2:
                hit = await self._asked(known, self._num_cached)
                miss = await self._asked(unknown, 0)
            else:
                miss = await self._asked(unknown, 0)
                hit = await self._asked(known, self._num_cached)
        self._known = unknown
        return miss, hit

    async def _asked(self, prefix: Sequence[int], num_cached: int) -> Trace:
        request = Request(token_ids=(*prefix, *self._fresh(self._prompts.num_own)), text=None, num_output_tokens=1)
        trace = await self._ask(request)
        self._progress.advance()
        if trace.num_cached_tokens != num_cached:
            raise BenchError(
                f"a prompt was to find {num_cached} tokens in the prefix cache and found {trace.num_cached_tokens}: what was timed is something else"
            )
        return trace

    def _fresh(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(self._num_ids) for _ in range(count))


async def first_token(configure: Configure, stacks: Stacks, prompts: Prompts, effort: Effort, progress: Progress) -> Found:
    from corekit.compose.assemble import assemble

    with assemble(configure(prompts.settings(stacks.block_size)), block_allocator=stacks.provider(stacks.device), frontends=()) as assembly:
        asking = FirstToken(assembly.client, prompts, progress, stacks.block_size)
        await asking.prime()
        attempts = await measure(asking.pair, effort, CpuMeter)
        summary = assembly.summary()
    pairs = [attempt.value for attempt in attempts if attempt.kept]
    rows = [
        interval_row("TTFT without a hit, ms", [1e3 * miss.ttft for miss, _ in pairs]),
        interval_row("TTFT with a hit, ms", [1e3 * hit.ttft for _, hit in pairs]),
        interval_row("without / with", [miss.ttft / hit.ttft for miss, hit in pairs]),
    ]
    title = f"first token, {prompts.num_shared:,} shared and {prompts.num_own:,} own tokens, {names(stacks.device)}"
    return Found(sections={title: rows}, attempts=attempts, target={"engine": summary})

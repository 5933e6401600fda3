"""`bench prefix` and `bench memory`, each from its options to its result. Knows the parts of both; knows no command line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from .block_cost import CostSizes, block_cost
from .errors import BenchUsage
from .first_token import Prompts, first_token
from .forks import Samples, samples
from .found import Found, joined
from .hash_trace import HashTrace, conversations, read_hash_trace
from .lengths import Lengths, log_normal, read_lengths
from .loss import Distinct, loss
from .measure import Effort
from .packing import Room, packing
from .pressure import Crowd, pressure
from .progress import Progress
from .replay import Pools, Replay
from .result import Result
from .stacks import Stacks, names
from .verbs import UNLIMITED_QUEUE, Configure

PREFIX_PARTS = ("replay", "ttft", "loss")
MEMORY_PARTS = ("samples", "waste", "pressure", "cost")
Part = Callable[[], Awaitable[Found]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrefix:
    """Which parts of `bench prefix`, and their sizes."""

    only: Sequence[str] = ()
    """Empty: all."""
    traces: Sequence[Path] = ()
    """Empty: the built-in one."""
    percents: Sequence[float] = (1.0, 5.0, 20.0)
    host: float = 2.0
    """Blocks of the host's pool for each of the device's; 0: no host tier."""
    num_shared: int = 1024
    quick: bool = False
    seed: int

    def read(self) -> list[HashTrace]:
        if not self.traces:
            return [conversations(num_conversations=60 if self.quick else 1500, seed=self.seed)]
        if len({path.name for path in self.traces}) < len(self.traces):
            raise BenchUsage(f"--trace: two of {', '.join(map(str, self.traces))} have the same name, by which their figures are told apart. Rename one.")
        return [read_hash_trace(path) for path in self.traces]

    @property
    def prompts(self) -> Prompts:
        return Prompts(num_shared=self.num_shared, num_own=8 if self.quick else 32, seed=self.seed)

    @property
    def distinct(self) -> Distinct:
        return Distinct(num_requests=2, num_prompt_tokens=40, num_output_tokens=4, seed=self.seed) if self.quick else Distinct(seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedMemory:
    """Which parts of `bench memory`, and their sizes."""

    only: Sequence[str] = ()
    """Empty: all."""
    lengths: Path | None = None
    """None: built-in ones."""
    max_requests: int = 5000
    """Of the lengths."""
    room: Room = field(default_factory=Room)
    quick: bool = False
    seed: int

    def read(self) -> Lengths:
        most = min(self.max_requests, 100) if self.quick else self.max_requests
        return read_lengths(self.lengths, most) if self.lengths else log_normal(most, self.seed)

    @property
    def samples(self) -> Samples:
        return Samples(num_prompt_tokens=320, num_output_tokens=8, seed=self.seed) if self.quick else Samples(seed=self.seed)

    @property
    def crowd(self) -> Crowd:
        return Crowd(num_requests=4, num_held=2, num_prompt_tokens=20, num_output_tokens=30, seed=self.seed) if self.quick else Crowd(seed=self.seed)

    @property
    def cost(self) -> CostSizes:
        return CostSizes(pools=(512, 4096), rounds=5) if self.quick else CostSizes()


def bench_prefix(configure: Configure, asked: AskedPrefix, effort: Effort, err: TextIO) -> Result:
    """What a prefix cache is worth and what it costs. A repetition is a pair."""
    configure, progress = _unlimited(configure), Progress(err)
    stacks = Stacks(configure)
    stacks.check_caches()
    parts: Mapping[str, Part] = {
        "replay": lambda: Replay(stacks, asked.read(), Pools(percents=asked.percents, host=asked.host), progress).run(effort.max_foreign),
        "ttft": lambda: first_token(configure, stacks, asked.prompts, effort, progress),
        "loss": lambda: loss(configure, stacks, asked.distinct, effort, progress),
    }
    return _run("prefix", stacks, parts, asked.only, {"pairs": effort.reps, "seed": asked.seed}, effort)


def bench_memory(configure: Configure, asked: AskedMemory, effort: Effort, err: TextIO) -> Result:
    """What the KV memory holds, what it wastes, and what becomes of those that it does not hold."""
    configure, progress = _unlimited(configure), Progress(err)
    stacks, foreign = Stacks(configure), effort.max_foreign
    parts: Mapping[str, Part] = {
        "samples": lambda: samples(configure, stacks, asked.samples, progress, foreign),
        "waste": lambda: packing(configure, stacks, asked.read(), asked.room, progress, foreign),
        "pressure": lambda: pressure(configure, stacks, asked.crowd, effort, progress),
        "cost": lambda: block_cost(stacks, asked.cost, progress, foreign),
    }
    return _run("memory", stacks, parts, asked.only, {"seed": asked.seed}, effort)


def _unlimited(configure: Configure) -> Configure:
    return lambda given: configure({**UNLIMITED_QUEUE, **given})


def _run(bench: str, stacks: Stacks, parts: Mapping[str, Part], only: Sequence[str], subject: Mapping[str, Any], effort: Effort) -> Result:
    """The parts that were asked for, in their own order."""
    chosen = [name for name in parts if name in only or not only]

    async def run() -> dict[str, Found]:
        return {name: await parts[name]() for name in chosen}

    found = asyncio.run(run())
    result = joined(bench, {"parts": ", ".join(chosen), **subject}, found, effort)
    return replace(result, target={"stack": names(stacks.device), **result.target})

"""What the frontend and the engine's loop cost beside a model that costs next to nothing.

A server with the scripted model runs in a process of its own and is asked from this one; the loop is measured in this process,
through the client, with an executor that answers at once. Knows the command line and HTTP; nothing of what happens inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import process_time
from typing import TYPE_CHECKING, Any, TextIO

from corekit.api import Prompt, SamplingParams

from .errors import BenchUsage
from .frontend_load import Door, ask, stream
from .machine import CpuMeter
from .measure import Effort, measure
from .planning import InstantExecutor
from .progress import Progress
from .result import Result, attempt_facts, noise_remarks, spreads_of
from .verbs import UNLIMITED_QUEUE, Configure
from .watched import WatchedProcess, serve_command, served_at

if TYPE_CHECKING:
    from corekit.api import EngineClient

ANSWER = 128
"""Tokens of one answer at most: attention over a long context would be measured with the rest."""
BLOCK = 16
"""Tokens of a block of the scripted model's KV memory, which is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendLoad:
    """What is asked in one repetition."""

    num_tokens: int = 20_000
    """Of all streams of one measurement together."""
    num_requests: int = 2_000
    """Of all connections of one measurement together."""
    streams: tuple[int, ...] = (1, 16, 128)
    connections: tuple[int, ...] = (1, 16, 64)
    sequences: tuple[int, ...] = (1, 64, 256)
    timeout: float = 60.0

    def settings(self) -> dict[str, Any]:
        """By dotted key: a model that costs little, and room for all of it."""
        most = max(*self.streams, *self.connections, *self.sequences)
        return {
            "model.source": "none",
            "model.use": "scripted",
            "scheduler.max_num_seqs": most,
            "block_allocator.block_size": BLOCK,
            "block_allocator.num_blocks": self.num_tokens // BLOCK + 4 * most,
        }


def bench_frontend(configure: Configure, overrides: tuple[str, ...], load: FrontendLoad, effort: Effort, err: TextIO) -> Result:
    """overrides: `--set`, for the server; `configure` has them for the loop."""
    if not Path("/proc/self/status").exists():
        raise BenchUsage("frontend: processor time of the server is read from /proc, and this system has none.")
    from corekit.compose.assemble import assemble

    progress, gate = Progress(err), Event()
    gate.set()
    settings = load.settings()
    with _served((*(f"{name}={value}" for name, value in settings.items()), *overrides), load.timeout) as (process, door):

        async def asked(number: int, label: str) -> dict[str, float]:
            return await asyncio.to_thread(_asked, process, door, load, progress, label)

        attempts = asyncio.run(measure(asked, effort, lambda: CpuMeter(process.pid)))
    with assemble(configure({**UNLIMITED_QUEUE, **settings}), executor=InstantExecutor(gate), frontends=()) as assembly:

        async def looped(number: int, label: str) -> dict[str, float]:
            return {f"{n}_sequences_us_per_step": 1e6 * await _loop(assembly.client, load, n, progress, label) for n in load.sequences}

        beside = asyncio.run(measure(looped, effort, CpuMeter))
        summary = assembly.summary()
    tries = [*attempts, *beside]
    spreads = {name: one for some in (attempts, beside) for name, one in spreads_of([attempt.value for attempt in some if attempt.kept]).items()}
    return Result(
        bench="frontend",
        subject={"tokens": load.num_tokens, "requests": load.num_requests},
        target={"engine": summary},
        spreads=spreads,
        percentiles={},
        attempts=[attempt_facts(one) | {"of": of, **one.value} for of, some in (("server", attempts), ("loop", beside)) for one in some],
        remarks=noise_remarks(tries, effort.max_foreign),
    )


@contextmanager
def _served(settings: tuple[str, ...], timeout: float) -> Iterator[tuple[WatchedProcess, Door]]:
    process = WatchedProcess(serve_command(*(f"--set={one}" for one in settings)))
    try:
        _, host, port, model = served_at(process)
        yield process, Door(host=host, port=port, model=model, timeout=timeout)
    finally:
        process.end()


def _asked(process: WatchedProcess, door: Door, load: FrontendLoad, progress: Progress, label: str) -> dict[str, float]:
    """Streams, then short answers: microseconds of the server's processor time, rates, and the share of both processes' time that is this one's."""
    found: dict[str, float] = {}

    for n in load.streams:
        length = min(ANSWER, load.num_tokens // n)
        num_answers = max(1, load.num_tokens // (n * length))
        num_tokens = n * num_answers * length
        progress.begin(f"{n} streams, {label}", n * num_answers, "answers")
        spent, loop, own = process.cpu_seconds(), process.main_thread_seconds(), process_time()
        seconds, num_events = stream(door, n, num_answers, length, progress.advance)
        spent, loop, own = process.cpu_seconds() - spent, process.main_thread_seconds() - loop, process_time() - own
        found[f"{n}_streams_us_per_token"] = 1e6 * spent / num_tokens
        found[f"{n}_streams_loop_us_per_event"] = 1e6 * loop / num_events
        found[f"{n}_streams_tokens_per_event"] = num_tokens / num_events
        found[f"{n}_streams_tokens_per_second"] = num_tokens / seconds
        found[f"{n}_streams_load_share"] = own / (own + spent)
    for n in load.connections:
        num_requests = load.num_requests // n
        progress.begin(f"{n} connections, {label}", n * num_requests, "answers")
        spent, own = process.cpu_seconds(), process_time()
        seconds = ask(door, n, num_requests, progress.advance)
        spent, own = process.cpu_seconds() - spent, process_time() - own
        found[f"{n}_connections_requests_per_second"] = n * num_requests / seconds
        found[f"{n}_connections_us_per_request"] = 1e6 * spent / (n * num_requests)
        found[f"{n}_connections_load_share"] = own / (own + spent)
    return found


async def _loop(client: EngineClient, load: FrontendLoad, num_sequences: int, progress: Progress, label: str) -> float:
    """Seconds of this process per sequence and step: schedule, commit, hand over, decode to text. The executor answers at once."""
    num_tokens = min(ANSWER, load.num_tokens // num_sequences)
    num_rounds = max(1, load.num_tokens // (num_sequences * num_tokens))
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)

    async def read(number: int) -> None:
        for _ in range(num_rounds):
            async for _ in client.generate(Prompt(token_ids=(65, number % 250)), params):
                pass
            progress.advance()

    async with progress.watching(f"{num_sequences} sequences, {label}", num_sequences * num_rounds, "answers"):
        began = process_time()
        await asyncio.gather(*(read(number) for number in range(num_sequences)))
        spent = process_time() - began
    return spent / (num_sequences * num_rounds * num_tokens)

"""A trace of real arrivals, played for minutes while one client in twenty leaves: nothing is left behind. On demand: `-m soak --soak SECONDS`."""

from __future__ import annotations

import asyncio
import csv
import gc
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from conformance_rig import Server, served

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]
TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "azure-2023-conversation.csv"
SHORTER = 16
"""Lengths of the trace are divided by this: for a model without weights on two cores."""
PER_SECOND = 50.0
"""Requests, on average; their spacing is the trace's own."""
LEAVING = 0.05
WARM_SECONDS = 20.0
MAX_GROWTH = 16 * 2**20
"""Bytes in the second half, client and allocator's scattered pages included: a leak of a kilobyte a request is more in ten minutes."""


@dataclass(frozen=True)
class Arrival:
    at: float
    num_prompt_tokens: int
    num_tokens: int


@dataclass(frozen=True)
class Footprint:
    """What a server holds at rest."""

    tasks: int
    descriptors: int
    threads: int
    used_blocks: int


def arrivals() -> Iterator[Arrival]:
    """Of the trace again and again, at the chosen rate."""
    if not TRACE.exists():
        pytest.skip(f"needs traces: {TRACE.name}")
    with TRACE.open() as file:
        rows = [(datetime.fromisoformat(row["TIMESTAMP"][:26]), int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    span = (rows[-1][0] - rows[0][0]).total_seconds()
    scale = len(rows) / PER_SECOND / span
    turn = 0
    while True:
        for at, num_prompt_tokens, num_tokens in rows:
            yield Arrival(((at - rows[0][0]).total_seconds() + turn * span) * scale, max(1, num_prompt_tokens // SHORTER), max(1, num_tokens // SHORTER))
        turn += 1


async def ask(client: httpx.AsyncClient, arrival: Arrival, rng: random.Random, ends: Counter[str]) -> None:
    shared = "The same beginning for many. " * 4
    prompt = (shared if rng.random() < 0.5 else f"{rng.random()} ") + "x" * arrival.num_prompt_tokens
    body = {
        "model": "fingerprint",
        "prompt": prompt[: arrival.num_prompt_tokens],
        "max_tokens": arrival.num_tokens,
        "ignore_eos": True,
        "stream": rng.random() < 0.8,
    }
    leaves_after = rng.random() * 0.04 if rng.random() < LEAVING else None
    try:
        async with asyncio.timeout(leaves_after):
            async with client.stream("POST", "/v1/completions", json=body) as response:
                text = await response.aread()
        whole = text.endswith(b"data: [DONE]\n\n") if body["stream"] else response.status_code == 200 and bool(json.loads(text)["choices"])
        ends["whole" if whole else str(response.status_code)] += 1
    except TimeoutError:
        ends["left"] += 1


async def played(server: Server, schedule: Iterator[Arrival], since: float, until: float, ends: Counter[str]) -> None:
    """Every arrival between two moments of the trace, and all their ends."""
    rng = random.Random(until)
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=httpx.Limits(max_connections=None, max_keepalive_connections=20)) as client:
        tasks: set[asyncio.Task[None]] = set()
        for arrival in schedule:
            if arrival.at >= until:
                break
            await asyncio.sleep(max(0.0, arrival.at - since - (time.monotonic() - began)))
            task = asyncio.create_task(ask(client, arrival, rng, ends))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)


def footprint(server: Server) -> Footprint:
    assert server.at_rest(), server.audit()
    stats = server.assembly.client.stats()
    time.sleep(0.5)  # connections that were closed are gone
    gc.collect()
    return Footprint(len(asyncio.all_tasks(server.loop)), len(os.listdir("/proc/self/fd")), threading.active_count(), stats.num_blocks - stats.num_free_blocks)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_nothing_is_left_behind(pytestconfig: pytest.Config) -> None:
    seconds = pytestconfig.option.soak
    schedule = arrivals()
    ends: Counter[str] = Counter()
    with served(model="fingerprint", seats=32, budget=512, blocks=1024, block_size=16, max_model_len=2048) as server:
        asyncio.run(played(server, schedule, 0.0, WARM_SECONDS, Counter()))
        before, at_begin = footprint(server), resident()
        asyncio.run(played(server, schedule, WARM_SECONDS, WARM_SECONDS + seconds / 2, ends))
        at_half = resident()
        asyncio.run(played(server, schedule, WARM_SECONDS + seconds / 2, WARM_SECONDS + seconds, ends))
        after, growth, late_growth = footprint(server), resident() - at_begin, resident() - at_half
        stats = server.assembly.client.stats()
        print(f"\n{dict(ends)}; preempted {stats.num_preemptions}; {before} -> {after}; {growth / 2**20:+.1f} MiB in {seconds:.0f} s")
        print(f"of those {late_growth / 2**20:+.1f} MiB in the second half")
        assert after == before
        assert set(ends) <= {"whole", "left"}
        assert 0.02 < ends["left"] / sum(ends.values()) < 0.08
        assert sum(ends.values()) > 0.8 * PER_SECOND * seconds
        assert late_growth < MAX_GROWTH

"""Three times what the server can do, for twenty seconds: it answers or refuses, those it takes do not wait longer than its queue, memory stays."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from server_process import ServerProcess, server_process

pytestmark = pytest.mark.ci
SEATS, QUEUE, TOKENS = 4, 32, 10
SECONDS, TIMES = 20.0, 3.0
REQUEST = {"model": "scripted", "prompt": "Q", "temperature": 0, "max_tokens": TOKENS, "stream": True}


@dataclass(frozen=True)
class Outcome:
    status: int
    at: float
    first_token_seconds: float
    whole: bool
    retry_after: float


async def ask(client: httpx.AsyncClient) -> Outcome:
    began = time.monotonic()
    first = 0.0
    whole = False
    async with client.stream("POST", "/v1/completions", json=REQUEST) as response:
        async for line in response.aiter_lines():
            first = first or time.monotonic() - began
            whole = whole or line == "data: [DONE]"
            assert '"error"' not in line or response.status_code != 200
        return Outcome(response.status_code, time.monotonic(), first, whole, float(response.headers.get("retry-after", 0)))


async def capacity(client: httpx.AsyncClient, seconds: float) -> float:
    """Requests a second of a closed loop that keeps every seat taken."""
    end = time.monotonic() + seconds
    num_done = 0

    async def one() -> None:
        nonlocal num_done
        while time.monotonic() < end:
            assert (await ask(client)).status == 200
            num_done += 1

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(2 * SEATS)))
    return num_done / (time.monotonic() - began)


async def overloaded(server: ServerProcess) -> tuple[float, list[Outcome], int]:
    """(capacity, outcomes, bytes by which the process grew after the first quarter)."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=server.url, timeout=30, limits=limits) as client:
        rate = await capacity(client, 4.0)
        tasks = []
        began = time.monotonic()
        resident = 0
        while (now := time.monotonic() - began) < SECONDS:
            while len(tasks) < now * rate * TIMES:  # an open loop: nobody waits for anybody
                tasks.append(asyncio.create_task(ask(client)))
            if now > SECONDS / 4 and not resident:
                resident = server.resident_bytes()
            await asyncio.sleep(0.005)
        outcomes = await asyncio.gather(*tasks)
        return rate, outcomes, server.resident_bytes() - resident


def test_three_times_its_capacity(tmp_path: Path) -> None:
    with server_process(tmp_path, step_seconds=0.01, seats=SEATS, queue=QUEUE) as server:
        rate, outcomes, growth = asyncio.run(overloaded(server))
        statuses = Counter(outcome.status for outcome in outcomes)
        taken = [outcome for outcome in outcomes if outcome.status == 200]
        first = sorted(outcome.first_token_seconds for outcome in taken)
        p99 = first[int(len(first) * 0.99)]
        bound = (QUEUE + SEATS) / rate
        print(f"\ncapacity {rate:.1f}/s, {dict(statuses)}, p99 of the first token {p99:.2f} s (the queue: {bound:.2f} s), growth {growth / 2**20:.1f} MiB")
        assert set(statuses) <= {200, 429, 503}
        assert statuses[503] > len(outcomes) / 3, "it was no overload"
        assert all(outcome.whole for outcome in taken)
        assert all(1 <= outcome.retry_after <= 30 for outcome in outcomes if outcome.status != 200)
        assert p99 < 1.5 * bound + 0.2
        assert len(taken) / SECONDS >= 0.8 * rate
        assert growth < 50 * 2**20
        assert httpx.get(server.url + "/ready").status_code == 200

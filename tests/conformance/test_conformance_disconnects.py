"""Clients that leave at any moment, ten rounds of twenty-four: what they asked for is over within a tenth of a second and a step."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from conformance_rig import MODEL, Server, served

pytestmark = pytest.mark.ci
NUM_CLIENTS, NUM_ROUNDS, STEP_SECONDS = 24, 10, 0.01
MOMENTS = ("head", "body", "sent", "prefill", "decode", "stream")


@pytest.fixture
def server() -> Iterator[Server]:
    """Four seats for twenty-four: most wait. Steps of sixteen tokens: a long prompt takes a quarter of a second."""
    with served(texts=("x" * 2000,), max_model_len=2048, seats=4, budget=16, blocks=2048, step_seconds=STEP_SECONDS) as server:
        yield server
        server.check_end()


def raw(path: str, fields: dict[str, object]) -> bytes:
    request = httpx.Request("POST", f"http://127.0.0.1{path}", json={"model": MODEL, "temperature": 0, "max_tokens": 1500, **fields})
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + request.read()


async def leave(address: tuple[str, int], rng: random.Random, left: list[float]) -> str:
    """Sends some or all of a request, waits until some moment, and goes: politely, or with a reset."""
    moment = rng.choice(MOMENTS)
    fields = {"prompt": rng.choice("QRS") * (400 if moment == "prefill" else 3), "stream": moment == "stream" or rng.random() < 0.5, "n": rng.choice((1, 1, 3))}
    whole = raw("/v1/completions", fields)
    reader, writer = await asyncio.open_connection(*address)
    cut = {"head": rng.randrange(whole.index(b"\r\n\r\n")), "body": rng.randrange(whole.index(b"\r\n\r\n") + 4, len(whole))}
    writer.write(whole[: cut.get(moment, len(whole))])
    await writer.drain()
    if moment == "stream":
        try:
            async with asyncio.timeout(0.5):
                await reader.readuntil(b"data: ")
        except (TimeoutError, asyncio.IncompleteReadError):
            pass
    elif moment != "sent":
        await asyncio.sleep(rng.random() * 0.4)
    if rng.random() < 0.3:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    left.append(time.monotonic())
    return moment


def test_clients_leave_at_any_moment(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    rng = random.Random(11)
    met: Counter[str] = Counter()
    slowest = 0.0

    async def one_round() -> list[str]:
        left: list[float] = []
        moments = await asyncio.gather(*(leave((host, int(port)), random.Random(rng.random()), left) for _ in range(NUM_CLIENTS)))
        while not idle():
            assert time.monotonic() - max(left) < 5, server.audit()
            await asyncio.sleep(0.001)
        nonlocal slowest
        slowest = max(slowest, time.monotonic() - max(left))
        return list(moments)

    def idle() -> bool:
        stats = server.assembly.client.stats()
        return not (stats.num_running or stats.num_waiting) and server.assembly.engine.idle

    for _ in range(NUM_ROUNDS):
        met.update(asyncio.run(one_round()))
        assert server.audit() == []
    stats = server.assembly.client.stats()
    print(f"\nleft {dict(met)}; all was over {slowest * 1000:.0f} ms after the last had gone; ended {dict(stats.num_finished)}")
    assert set(met) == set(MOMENTS)
    assert set(stats.num_finished) == {"abort"}
    assert slowest < 0.1 + 2 * STEP_SECONDS

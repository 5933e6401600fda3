"""SIGTERM under load: readiness and new work end at once, running streams have their time, then an error, and the exit code is 0."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from server_process import ServerProcess, server_process

pytestmark = pytest.mark.ci
NUM_STREAMS = 16
CHAT = "/v1/chat/completions"


@dataclass
class Stream:
    tokens: int = 0
    done: bool = False
    error: str | None = None
    broken: str | None = None
    ended_at: float = field(default=0.0, compare=False)


@dataclass
class Drained:
    streams: list[Stream]
    exit_code: int
    seconds: float
    """From the signal to the end of the process."""
    stream_seconds: float = 0.0
    """From the signal to the end of the last stream."""
    ready_seconds: float = 0.0
    """From the signal to the first 503 of /ready."""
    refused: list[tuple[int, str]] = field(default_factory=list)


def request(max_tokens: int) -> dict[str, object]:
    return {"model": "scripted", "messages": [{"role": "user", "content": "Q"}], "temperature": 0, "max_tokens": max_tokens, "stream": True}


async def read(client: httpx.AsyncClient, stream: Stream, max_tokens: int) -> None:
    try:
        async with client.stream("POST", CHAT, json=request(max_tokens)) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    stream.done = True
                elif line.startswith("data: "):
                    value = json.loads(line.removeprefix("data: "))
                    stream.error = value["error"]["code"] if "error" in value else None
                    stream.tokens += "choices" in value
    except httpx.TransportError as error:
        stream.broken = repr(error)
    stream.ended_at = time.monotonic()


async def drained(server: ServerProcess, max_tokens: int, second_after: float | None = None) -> Drained:
    """Sixteen streams, a signal once all have begun, and a look at the door until the end."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client, httpx.AsyncClient(base_url=server.url, timeout=5) as prober:
        await prober.get("/ready")
        streams = [Stream() for _ in range(NUM_STREAMS)]
        tasks = [asyncio.create_task(read(client, stream, max_tokens)) for stream in streams]
        while any(stream.tokens < 3 for stream in streams):
            await asyncio.sleep(0.01)
        server.terminate()
        began = time.monotonic()
        while (await prober.get("/ready")).status_code != 503:
            assert time.monotonic() - began < 5
        ready_seconds = time.monotonic() - began
        if second_after is not None:
            await asyncio.sleep(second_after)
            server.terminate()
            began = time.monotonic()
        refused = [] if second_after is not None else [await refusal(prober) for _ in range(3)]
        code = await asyncio.to_thread(server.exit_code, 30)
        seconds = time.monotonic() - began
        await asyncio.wait(tasks)
    return Drained(streams, code, seconds, max(stream.ended_at for stream in streams) - began, ready_seconds, refused)


async def refusal(prober: httpx.AsyncClient) -> tuple[int, str]:
    """New work, on a connection of its own."""
    async with httpx.AsyncClient(base_url=prober.base_url, timeout=5) as stranger:
        response = await stranger.post(CHAT, json=request(4))
    assert float(response.headers["retry-after"]) >= 1
    return response.status_code, response.json()["error"]["code"]


def test_running_work_comes_to_its_end(tmp_path: Path) -> None:
    with server_process(tmp_path, step_seconds=0.02, seats=NUM_STREAMS, shutdown_seconds=10) as server:
        found = asyncio.run(drained(server, max_tokens=100))
        assert (found.exit_code, found.refused) == (0, [(503, "draining")] * 3), "".join(server.lines)
        assert found.streams == [Stream(tokens=102, done=True)] * NUM_STREAMS
        assert found.ready_seconds < 0.1
        assert found.seconds < 10


def test_what_outlasts_its_time_ends_with_an_error(tmp_path: Path) -> None:
    with server_process(tmp_path, step_seconds=0.02, seats=NUM_STREAMS, shutdown_seconds=1.5) as server:
        found = asyncio.run(drained(server, max_tokens=900))
        assert (found.exit_code, found.refused) == (0, [(503, "draining")] * 3), "".join(server.lines)
        assert {(stream.done, stream.error, stream.broken) for stream in found.streams} == {(False, "draining", None)}
        assert found.ready_seconds < 0.1
        assert 1.4 < found.stream_seconds < 1.5 + 0.5
        assert found.seconds < 1.5 + 4.0, "the rest is the interpreter's own end, on a machine with much else to do"


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with server_process(tmp_path, step_seconds=0.02, seats=NUM_STREAMS, shutdown_seconds=60) as server:
        found = asyncio.run(drained(server, max_tokens=900, second_after=0.3))
        assert found.stream_seconds < 1.0
        assert found.seconds < 5.0
        assert not any(stream.done for stream in found.streams)

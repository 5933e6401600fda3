"""How long a server takes from its process's start to the last byte of a short chat answer, and what memory it holds then.

Every repetition is a fresh process of `corekit serve`. Times are taken here, when a line or a byte of it arrives; stages are
those that the server names in its log. Knows the command line and HTTP; nothing of what happens inside.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TextIO

from .errors import BenchError, BenchUsage
from .machine import CpuMeter
from .measure import Effort, measure
from .progress import Progress
from .result import Result, attempt_facts, noise_remarks, spreads_of
from .watched import WatchedProcess, serve_command, served_at

PROMPT = "What is a cat?"
IMPORTS_TORCH = "import torch; print(flush=True); import sys; sys.stdin.read()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is started, and what it is asked."""

    arguments: Sequence[str]
    """Of `corekit serve`: file or source, overrides."""
    num_tokens: int = 16
    timeout: float = 120.0
    """Seconds for the whole of one start."""


def bench_startup(start: Start, effort: Effort, err: TextIO) -> Result:
    if not Path("/proc/self/status").exists():
        raise BenchUsage("startup: memory and processor time of the server are read from /proc, and this system has none.")
    progress = Progress(err)

    async def server(number: int, label: str) -> dict[str, float]:
        async with progress.watching(f"startup {label}", 1, "answers"):
            return await _watched(serve_command(*start.arguments), start.timeout, lambda process: _answered(process, start))

    async def torch(number: int, label: str) -> dict[str, float]:
        async with progress.watching(f"import of torch {label}", 1, "imports"):
            return await _watched((sys.executable, "-P", "-c", IMPORTS_TORCH), start.timeout, _imported)

    attempts = asyncio.run(measure(server, effort, CpuMeter))
    beside = asyncio.run(measure(torch, effort, CpuMeter))
    spreads = spreads_of([attempt.value for attempt in attempts if attempt.kept])
    spreads |= {f"only_torch_{name}": one for name, one in spreads_of([attempt.value for attempt in beside if attempt.kept]).items()}
    return Result(
        bench="startup",
        subject={"prompt": PROMPT, "output_tokens": start.num_tokens},
        target={"server": " ".join(("corekit serve", *start.arguments))},
        spreads=spreads,
        percentiles={},
        attempts=[attempt_facts(one) | {"of": of, **one.value} for of, tries in (("server", attempts), ("only torch", beside)) for one in tries],
        remarks=[*_remarks(), *noise_remarks([*attempts, *beside], effort.max_foreign)],
    )


def _remarks() -> list[str]:
    if sys.dont_write_bytecode:
        return ["PYTHONDONTWRITEBYTECODE is set: modules that were not compiled when they were installed are compiled in every start"]
    return []


async def _watched(command: Sequence[str], timeout: float, ask: Callable[[WatchedProcess], dict[str, float]]) -> dict[str, float]:
    """What `ask` finds of a process, which ends here however that goes."""
    process = WatchedProcess(command)
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.to_thread(ask, process)
    except TimeoutError:
        raise BenchError(f"the start took longer than {timeout:g} s. Raise --timeout. {process.said()}") from None
    finally:
        process.end()


def _imported(process: WatchedProcess) -> dict[str, float]:
    at, _ = process.wait_for("")
    return {"seconds": at, **process.cost()}


def _answered(process: WatchedProcess, start: Start) -> dict[str, float]:
    """Times of the stages, of the first byte and of the last one, and what was spent until then."""
    listening, host, port, model = served_at(process)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": start.num_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(host, port, timeout=start.timeout)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = bytearray(answer.read(1))
        first = perf_counter() - process.began
        text += answer.read()
        last = perf_counter() - process.began
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(f"the server at {host}:{port} broke off: {error}. {process.said()}") from None
    finally:
        connection.close()
    _check(answer.status, bytes(text), start.num_tokens)
    return {**process.stages(), "listening_seconds": listening, "first_byte_seconds": first, "last_byte_seconds": last, **process.cost()}


def _check(status: int, text: bytes, num_tokens: int) -> None:
    if status != 200:
        raise BenchError(f"the server answered {status}: {text[:300].decode('utf-8', 'replace')}")
    events = [json.loads(line[5:]) for line in text.split(b"\n") if line.startswith(b"data:") and line[5:].strip() != b"[DONE]"]
    got = next((event["usage"]["completion_tokens"] for event in reversed(events) if event.get("usage")), 0)
    if got != num_tokens:
        raise BenchError(f"asked for {num_tokens} tokens and got {got}: what was timed is something else")

"""How long a server takes from its process's start to the last byte of a short chat answer, and what memory it holds then.

Every repetition is a fresh process of `corekit serve`. Times are taken here, when a line or a byte of it arrives; stages are
those that the server names in its log. Knows the command line and HTTP; nothing of what happens inside.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import BinaryIO, TextIO

from .errors import BenchError, BenchUsage
from .machine import CpuMeter
from .measure import Effort, measure
from .progress import Progress
from .result import Result, attempt_facts, noise_remarks, spreads_of

PROMPT = "What is a cat?"
MEMORY: Mapping[str, str] = {"VmHWM": "peak_mib", "RssAnon": "anonymous_mib", "RssFile": "mapped_mib"}
"""Fields of /proc/PID/status, and what they are called here."""
MAX_SAID = 20
"""Last lines of a server that are quoted when it ends too early."""
LISTENING = "listening on "
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
            return await _watched(_command("serve", *start.arguments), start.timeout, lambda process: _answered(process, start))

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


def _command(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "corekit", *arguments, "--port", "0", "--log-level", "debug", "--log-format", "json")


async def _watched(command: Sequence[str], timeout: float, ask: Callable[[_Process], dict[str, float]]) -> dict[str, float]:
    """What `ask` finds of a process, which ends here however that goes."""
    process = _Process(command)
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.to_thread(ask, process)
    except TimeoutError:
        raise BenchError(f"the start took longer than {timeout:g} s. Raise --timeout. {process.said()}") from None
    finally:
        process.end()


class _Process:
    """A process with the time at which each of its lines came, in seconds since its start."""

    def __init__(self, command: Sequence[str]) -> None:
        self._lines: list[tuple[float, str]] = []
        self._changed = threading.Condition()
        self._num_open = 2
        self.began = perf_counter()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [threading.Thread(target=self._read, args=(pipe,), daemon=True) for pipe in (self._process.stdout, self._process.stderr)]
        for reader in self._readers:
            reader.start()

    def wait_for(self, beginning: str) -> tuple[float, str]:
        """When the first line that begins so came, and the line."""
        with self._changed:
            while True:
                if found := next(((at, line) for at, line in self._lines if line.startswith(beginning)), None):
                    return found
                if not self._num_open:
                    raise BenchError(f"the process ended with code {self._process.wait()} before it was ready. {self.said()}")
                self._changed.wait()

    def stages(self) -> dict[str, float]:
        """Those that the server named in lines of its log so far."""
        found = {}
        for at, line in self._lines:
            if line.startswith("{") and (stage := json.loads(line).get("stage")):
                found[f"{stage}_seconds"] = at
        return found

    def cost(self) -> dict[str, float]:
        """Processor seconds and MiB of memory so far."""
        status = dict(line.split(":", 1) for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines())
        spent = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        memory = {name: int(status[field].split()[0]) / 1024 for field, name in MEMORY.items() if field in status}
        return {"cpu_seconds": sum(map(int, spent)) / os.sysconf("SC_CLK_TCK"), **memory}

    def said(self) -> str:
        return "Its last lines:" + "".join(f"\n  {line}" for _, line in self._lines[-MAX_SAID:]) if self._lines else "It wrote nothing."

    def end(self) -> None:
        self._process.send_signal(signal.SIGKILL)  # it has nothing to put in order, and waiting for it would be measured with the next
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _read(self, pipe: BinaryIO) -> None:
        for line in pipe:
            now = perf_counter() - self.began
            with self._changed:
                self._lines.append((now, line.decode("utf-8", "replace").rstrip()))
                self._changed.notify_all()
        with self._changed:
            self._num_open -= 1
            self._changed.notify_all()


def _imported(process: _Process) -> dict[str, float]:
    at, _ = process.wait_for("")
    return {"seconds": at, **process.cost()}


def _answered(process: _Process, start: Start) -> dict[str, float]:
    """Times of the stages, of the first byte and of the last one, and what was spent until then."""
    listening, line = process.wait_for(LISTENING)
    address, model = line.removeprefix(LISTENING).split(" (model ")
    body = {
        "model": model.partition(";")[0],
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": start.num_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=start.timeout)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = bytearray(answer.read(1))
        first = perf_counter() - process.began
        text += answer.read()
        last = perf_counter() - process.began
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(f"the server at {address} broke off: {error}. {process.said()}") from None
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

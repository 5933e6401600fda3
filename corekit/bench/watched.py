"""A process that is measured from outside: when each of its lines came, what it spent, what it holds. Reads /proc; knows nothing of what it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import BinaryIO

from .errors import BenchError

MEMORY: Mapping[str, str] = {"VmHWM": "peak_mib", "RssAnon": "anonymous_mib", "RssFile": "mapped_mib"}
"""Fields of /proc/PID/status, and what they are called here."""
MAX_SAID = 20
"""Last lines of a process that are quoted when it ends too early."""
LISTENING = "listening on "


class WatchedProcess:
    """A process with the time at which each of its lines came, in seconds since its start."""

    def __init__(self, command: Sequence[str]) -> None:
        self._lines: list[tuple[float, str]] = []
        self._changed = threading.Condition()
        self._num_open = 2
        self.began = perf_counter()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603 - of this program, by no shell
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
        memory = {name: int(status[field].split()[0]) / 1024 for field, name in MEMORY.items() if field in status}
        return {"cpu_seconds": self.cpu_seconds(), **memory}

    def cpu_seconds(self) -> float:
        """User and system time of all its threads so far."""
        return _spent(Path(f"/proc/{self._process.pid}/stat"))

    def main_thread_seconds(self) -> float:
        return _spent(Path(f"/proc/{self._process.pid}/task/{self._process.pid}/stat"))

    @property
    def pid(self) -> int:
        return self._process.pid

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


def _spent(stat: Path) -> float:
    return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def serve_command(*arguments: str) -> tuple[str, ...]:
    """`corekit serve` of this installation on a free port, which says what it has reached."""
    return (sys.executable, "-P", "-m", "corekit", "serve", *arguments, "--port", "0", "--log-level", "debug", "--log-format", "json")


def served_at(process: WatchedProcess) -> tuple[float, str, int, str]:
    """Seconds until it listened, its host and port, and the first name of its model."""
    at, line = process.wait_for(LISTENING)
    address, model = line.removeprefix(LISTENING).split(" (model ")
    host, _, port = address.removeprefix("http://").rpartition(":")
    return at, host, int(port), model.partition(";")[0].removesuffix(")")

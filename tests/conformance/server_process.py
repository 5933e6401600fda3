"""`corekit serve` as a process of its own, with a model that answers what was written down. Knows no test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

MAIN = [sys.executable, "-c", "from corekit.cli import main; main(prog_name='corekit')"]
TABLES = """
[model]
source = "none"
use = "scripted"
max_model_len = 2048
options = {{texts = ["{text}"], step_seconds = {step_seconds}}}
[tokenizer]
use = "bytes"
[engine]
threads = 1
[scheduler]
max_num_seqs = {seats}
max_queued_requests = {queue}
[block_allocator]
num_blocks = 2048
[[frontend]]
use = "openai-http"
options = {{port = 0, shutdown_seconds = {shutdown_seconds}}}
"""


class ServerProcess:
    """Its address, its end, and what the system knows of it."""

    def __init__(self, config: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COREKIT_")}
        environment = {**kept, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        self._process = subprocess.Popen([*MAIN, "serve", str(config)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        self.lines: list[str] = []
        self._found = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            if not self.url and (address := re.search(r"http://127\.0\.0\.1:\d+", line)):
                self.url = address[0]
                self._found.set()
        self._found.set()

    def wait_until_ready(self, seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        assert self._found.wait(seconds) and self.url, "".join(self.lines)
        while True:
            try:
                if httpx.get(self.url + "/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < end and self._process.poll() is None, "".join(self.lines)
            time.sleep(0.02)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def exit_code(self, seconds: float) -> int:
        return self._process.wait(seconds)

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def num_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def num_threads(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/task"))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(30)
        self._reader.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def server_process(
    folder: Path, *, text: str = "x" * 1000, step_seconds: float = 0.01, seats: int = 4, queue: int = 32, shutdown_seconds: float = 5.0
) -> Iterator[ServerProcess]:
    config = folder / "corekit.toml"
    config.write_text(TABLES.format(text=text, step_seconds=step_seconds, seats=seats, queue=queue, shutdown_seconds=shutdown_seconds))
    process = ServerProcess(config)
    try:
        process.wait_until_ready()
        yield process
    finally:
        process.close()

"""The command line as a process of its own: what it prints, how it ends, how it takes signals."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAIN = [sys.executable, "-c", "from corekit.cli import main; main(prog_name='corekit')"]
SCRIPTED = """
[model]
source = "none"
use = "scripted"
[engine]
threads = 1
[block_allocator]
num_blocks = 64
[plugins]
import = ["corekit_openai_http"]
[[frontend]]
use = "openai-http"
options = {port = 0}
"""


def environment(**more: str) -> dict[str, str]:
    """As most people have it: standard output is buffered."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COREKIT_", "PYTHONUNBUFFERED"))}
    return {**kept, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **more}


def call(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MAIN, *arguments], capture_output=True, text=True, env=environment(**more), timeout=120, check=False)


def write(folder: Path, text: str = SCRIPTED) -> str:
    file = folder / "corekit.toml"
    file.write_text(text)
    return str(file)


class Running:
    """A process whose lines can be waited for."""

    def __init__(self, *arguments: str, **more: str) -> None:
        self.process = subprocess.Popen([*MAIN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**more))
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._readers = [threading.Thread(target=self._read, args=(pipe,), daemon=True) for pipe in (self.process.stdout, self.process.stderr)]
        for reader in self._readers:
            reader.start()

    def wait_for(self, text: str, timeout: float = 90.0) -> str:
        """The first line with text."""
        with self._changed:
            found = self._changed.wait_for(lambda: any(text in line for line in self.lines) or self.process.poll() is not None, timeout)
            line = next((line for line in self.lines if text in line), None)
        assert found, f"no line with {text!r}: {self.text}"
        assert line is not None, f"ended without a line with {text!r}: {self.text}"
        return line

    def end(self, timeout: float = 30.0) -> int:
        """The exit code, when everything it wrote was read."""
        code = self.process.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        return code

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def _read(self, pipe: Iterator[str]) -> None:
        for line in pipe:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


@contextmanager
def running(*arguments: str, **more: str) -> Iterator[Running]:
    started = Running(*arguments, **more)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.end()
        for pipe in (started.process.stdout, started.process.stderr):
            assert pipe is not None
            pipe.close()

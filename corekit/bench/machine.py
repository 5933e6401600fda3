"""The machine under a benchmark: what it is, and who used its processors meanwhile. Reads /proc; elsewhere it says that it does not know."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

from corekit import __version__

SHORTEST = 0.5
"""Seconds. Processor time is counted in ticks of 10 ms per process: over less than this, a share would be noise."""

_PROC = Path("/proc")
_PACKAGES = ("torch", "transformers", "numpy", "msgspec", "uvicorn")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """Of an interval, in cores. None: not known (no /proc, a server that cannot be told apart, too short an interval)."""

    seconds: float
    own_cores: float | None
    foreign_cores: float | None
    """Used by processes that are neither ours nor the measured server's."""


class CpuMeter:
    """Own and foreign processor time from construction until `read`.

    `also`: processes (with their children) that count as own. `judge` false: there is one that cannot be found, so nothing is known.
    """

    def __init__(self, *also: int, judge: bool = True) -> None:
        self._judge = judge
        self._roots = (os.getpid(), *also)
        self._began = perf_counter()
        self._busy, self._own = _busy(), _tree_seconds(self._roots)

    def read(self) -> CpuUse:
        seconds = perf_counter() - self._began
        busy, own = _busy(), _tree_seconds(self._roots)
        if not self._judge or seconds < SHORTEST or busy is None or own is None or self._busy is None or self._own is None:
            return CpuUse(seconds=seconds, own_cores=None, foreign_cores=None)
        mine = max(0.0, own - self._own)
        return CpuUse(seconds=seconds, own_cores=mine / seconds, foreign_cores=max(0.0, busy - self._busy - mine) / seconds)


def machine_facts() -> dict[str, Any]:
    versions = {"corekit": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "versions": versions,
    }


def listening_process(port: int) -> int | None:
    """The process that listens on a TCP port of this machine; None when there is none that we may look at."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        for line in _text(table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    pids = [pid for pid in _pids() if inodes & _open_sockets(pid)] if inodes else []
    return min(pids, default=None)  # workers inherit the socket; their parent is the oldest


def is_local(host: str) -> bool:
    return host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")


def _open_sockets(pid: int) -> set[str]:
    found = set()
    try:
        for entry in os.scandir(_PROC / str(pid) / "fd"):
            target = os.readlink(entry.path)
            if target.startswith("socket:"):
                found.add(target)
    except OSError:
        return found
    return found


def _busy() -> float | None:
    """Seconds that all processors have worked since boot: user, nice, system, irq, softirq."""
    fields = _text("stat").partition("\n")[0].split()
    return None if len(fields) < 8 else sum(int(fields[i]) for i in (1, 2, 3, 6, 7)) / _ticks()


def _tree_seconds(roots: tuple[int, ...]) -> float | None:
    """Processor seconds of processes, their living descendants and their reaped children."""
    spent: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for pid in _pids():
        fields = _text(f"{pid}/stat").rpartition(")")[2].split()
        if fields:
            spent[pid] = sum(map(int, fields[11:15])) / _ticks()
            children.setdefault(int(fields[1]), []).append(pid)
    if not spent:
        return None
    todo, tree = list(roots), set[int]()
    while todo:
        pid = todo.pop()
        if pid not in tree:
            tree.add(pid)
            todo += children.get(pid, [])
    return sum(spent.get(pid, 0.0) for pid in tree)


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return []


def _text(name: str) -> str:
    try:
        return (_PROC / name).read_text()
    except OSError:
        return ""


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


def _cpu_name() -> str:
    for line in _text("cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

"""One JSON line a finished request. The engine's thread only queues it: a thread of this part waits for the disk."""

from __future__ import annotations

import json
import logging
import threading
import weakref
from dataclasses import asdict
from pathlib import Path
from queue import Full, Queue
from typing import TextIO

from corekit.api import RequestStats, StepStats

log = logging.getLogger(__name__)

Lines = Queue[RequestStats | None]
"""None ends the writer."""
PATIENCE = 5.0
"""Seconds that the end may wait for the disk."""


class RequestLog:
    """At most `max_waiting` lines wait; what is more is dropped and counted, so that a slow disk costs lines and never answers."""

    def __init__(self, path: Path, max_waiting: int) -> None:
        file = path.open("a", encoding="utf-8")  # now, so that a wrong path is known at composition
        self._waiting: Lines = Queue(max_waiting)
        self._num_dropped = 0
        writer = threading.Thread(target=_write, args=(self._waiting, file), name="request-log", daemon=True)
        writer.start()
        weakref.finalize(self, _finish, self._waiting, writer)  # with its engine, or with the process

    @property
    def num_dropped(self) -> int:
        return self._num_dropped

    def on_step(self, stats: StepStats) -> None:
        pass

    def on_request(self, stats: RequestStats) -> None:
        try:
            self._waiting.put_nowait(stats)
        except Full:
            self._num_dropped += 1


def _write(waiting: Lines, file: TextIO) -> None:
    with file:
        while (stats := waiting.get()) is not None:
            try:
                file.write(json.dumps(asdict(stats)) + "\n")
                if waiting.empty():
                    file.flush()
            except (OSError, ValueError) as error:
                log.error("request-log: %s cannot be written: %s", file.name, error)


def _finish(waiting: Lines, writer: threading.Thread) -> None:
    try:
        waiting.put(None, timeout=PATIENCE)
    except Full:
        return
    writer.join(PATIENCE)

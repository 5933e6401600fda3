"""Constraints of the logits processors: started before a request is queued, asked for a mask before each draw.

Knows processors and bits; no tensors, no steps, and not what a constraint means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from corekit.api import EngineDead, InvalidRequest, LogitsProcessor, NewSample, RequestFailed, RowProcessor, SamplingParams

log = logging.getLogger(__name__)

CLOSED = "the engine was closed"
MAX_STARTS = 64
"""Requests that are prepared at a time."""


class Constraint:
    """What all processors ask of one sample, as one. Invariant: once `fault` says what a processor raised, nothing is asked of it."""

    __slots__ = ("_rows", "fault")

    def __init__(self, rows: Sequence[RowProcessor]) -> None:
        self._rows = tuple(rows)
        self.fault: str | None = None

    def accept(self, token_ids: Sequence[int]) -> bool:
        """These ids were drawn. False: see `fault`."""
        for row in self._rows:
            try:
                row.accept(token_ids)
            except Exception as error:
                self.fault = _fault(row, "accept", error)
                return False
        return True

    def mask(self, num_ids: int) -> bytes | None:
        """Bits of the ids that may come next, in words of 32. None: see `fault`."""
        bits = bytearray(b"\xff") * (4 * -(-num_ids // 32))
        view = memoryview(bits).cast("I")
        for row in self._rows:
            try:
                row.fill(view)
            except Exception as error:
                self.fault = _fault(row, "fill", error)
                return None
        return bytes(bits)


class Starter:
    """Starts constraints in threads that do nothing else: those who wait for a slow processor hold up no tokenizer."""

    def __init__(self, processors: Sequence[LogitsProcessor]) -> None:
        self._processors = tuple(processors)
        self._threads = ThreadPoolExecutor(MAX_STARTS, "corekit-start")  # a thread begins with its first work

    async def start(self, request_id: str, token_ids: tuple[int, ...], params: SamplingParams) -> tuple[Constraint | None, ...]:
        """One entry for each sample; () when no processor wants any. Raises InvalidRequest, RequestFailed and, once closed, EngineDead."""
        if not self._processors:
            return ()
        samples = [NewSample(request_id=request_id, sample=sample, token_ids=token_ids, params=params) for sample in range(params.n)]
        try:
            started = await asyncio.get_running_loop().run_in_executor(self._threads, _start, self._processors, samples)
        except RuntimeError as closed:  # the pool's own: what a processor raises comes as RequestFailed
            raise EngineDead(CLOSED) from closed
        return started if any(started) else ()

    def close(self) -> None:
        """What is being prepared goes on to its end, and is refused by the engine."""
        self._threads.shutdown(wait=False)


def _start(processors: Sequence[LogitsProcessor], samples: Sequence[NewSample]) -> tuple[Constraint | None, ...]:
    started: list[Constraint | None] = []
    for sample in samples:
        rows = []
        for processor in processors:
            try:
                row = processor.start(sample)
            except InvalidRequest:
                raise
            except Exception as fault:
                raise RequestFailed(_fault(processor, "start", fault)) from fault
            if row is not None:
                rows.append(row)
        started.append(Constraint(rows) if rows else None)
    return tuple(started)


def _fault(part: object, method: str, error: Exception) -> str:
    log.debug("logits processor %s.%s raised", type(part).__name__, method, exc_info=error)
    return f"logits processor {type(part).__name__}.{method} raised {type(error).__name__}: {error}"

"""What a call costs, counted and not timed, so that a busy machine changes nothing. Knows nothing of what is called."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

_ROUNDS = 3
"""Of one call in several the cheapest counts: a list that grows moves now and then, which is nobody's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Python instructions, those of everything that was called included, and bytes allocated at the worst moment."""

    num_instructions: int
    num_bytes: int

    def outgrows(self, earlier: Cost) -> bool:
        """Clearly more than before: twice, and more than rounding."""
        return self.num_instructions > 2 * earlier.num_instructions + 64 or self.num_bytes > 2 * earlier.num_bytes + 1024


def cost_of(call: Callable[[], object]) -> Cost:
    """Counts on this thread."""
    return Cost(num_instructions=_instructions(call), num_bytes=_bytes(call))


def growth(calls: Sequence[Callable[[], object]], *, num_rounds: int) -> str:
    """Makes all calls in turn, `num_rounds` times over. The first whose cost has grown between begin and end, in words; else ""."""
    for call in calls:  # what is made once, at the first call, is no growth
        call()
    early = _cheapest(calls)
    for _ in range(num_rounds):
        for call in calls:
            call()
    for at, (before, after) in enumerate(zip(early, _cheapest(calls), strict=True)):
        if after.outgrows(before):
            return (
                f"call {at} of {len(calls)}: {before.num_instructions} instructions and {before.num_bytes} bytes at the begin, "
                f"{after.num_instructions} and {after.num_bytes} after {num_rounds} rounds"
            )
    return ""


def _cheapest(calls: Sequence[Callable[[], object]]) -> list[Cost]:
    rounds = [[cost_of(call) for call in calls] for _ in range(_ROUNDS)]
    return [
        Cost(num_instructions=min(cost.num_instructions for cost in costs), num_bytes=min(cost.num_bytes for cost in costs))
        for costs in zip(*rounds, strict=True)
    ]


def _instructions(call: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def _bytes(call: Callable[[], object]) -> int:
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        if not running:
            tracemalloc.stop()
    return max(0, peak - before)

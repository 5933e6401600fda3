"""Rounds of answers to the same prompts, and how one way of getting them compares with another. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corekit.api import EngineStats, StepStats

from .errors import BenchError
from .result import Row
from .statistics import spread

Tokens = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One round: the tokens of every request, and what the engine counted meanwhile."""

    tokens: Tokens
    seconds: float
    cpu: float
    """Seconds of this process, all threads."""
    steps: Sequence[StepStats]
    before: EngineStats
    after: EngineStats

    def count(self, name: str) -> int:
        return int(getattr(self.after, name) - getattr(self.before, name))


def compared(label: str, answered: Sequence[Answered], expected: Sequence[Answered], *, pressed: bool, exact: bool) -> Row:
    """Figures of the rounds of one way beside those without pressure. Counts are sums, times medians over rounds.

    Raises BenchError where nothing was preempted although it was `pressed`, and where answers differ although they are `exact`.
    """
    pairs = [pair for one, other in zip(answered, expected, strict=True) for pair in zip(one.tokens, other.tokens, strict=True)]
    num_equal = sum(got == wanted for got, wanted in pairs)
    if exact and num_equal != len(pairs):
        raise BenchError(f"{label}: {len(pairs) - num_equal} of {len(pairs)} answers differ from those of a pool that holds all: the engine lost KV")
    if pressed and not any(one.count("num_preemptions") for one in answered):
        raise BenchError(f"{label}: nothing was preempted, so nothing was measured. Is a block larger than an answer?")
    seconds = spread(one.seconds for one in answered).median
    return {
        "duration,_s": seconds,
        "of_no_pressure": seconds / spread(one.seconds for one in expected).median,
        "CPU_s": spread(one.cpu for one in answered).median,
        "steps": sum(len(one.steps) for one in answered),
        "tokens_computed": sum(step.num_tokens for one in answered for step in one.steps),
        "preemptions": sum(one.count("num_preemptions") for one in answered),
        "swapped": sum(one.count("num_swap_preemptions") for one in answered),
        "no_room": sum(one.count("num_swap_refusals") for one in answered),
        "MiB_to_host": sum(one.count("num_bytes_to_host") for one in answered) / 2**20,
        "MiB_to_device": sum(one.count("num_bytes_to_device") for one in answered) / 2**20,
        "same_answers": f"{num_equal} of {len(pairs)}",
    }

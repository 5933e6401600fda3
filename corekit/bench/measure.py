"""Repetitions: warm up, measure, watch who else used the processors, repeat what they disturbed. Knows nothing of what is measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .machine import CpuMeter, CpuUse

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How often to measure, and what to put up with."""

    warmup: int = 1
    reps: int = 3
    retries: int = 2
    """For each repetition that others disturbed."""
    max_foreign: float = 0.3
    """Cores that other processes may use before a repetition counts as disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Generic[T]):
    """One repetition as it was measured. Of the attempts at one repetition exactly one is kept: the least disturbed."""

    number: int
    """Which repetition of the workload it ran; no two attempts ran the same."""
    cpu: CpuUse
    noisy: bool
    kept: bool
    value: T


async def measure(run: Callable[[int, str], Awaitable[T]], effort: Effort, meter: Callable[[], CpuMeter]) -> list[Attempt[T]]:
    """`run(number, label)` does repetition `number` of the workload. Number 0 only ever warms up."""
    for number in range(effort.warmup):
        await run(number, f"warm-up {number + 1}/{effort.warmup}")
    number, attempts = max(effort.warmup, 1), list[Attempt[T]]()
    for rep in range(effort.reps):
        tries: list[tuple[int, CpuUse, T]] = []
        while True:
            again = f", again ({len(tries)}/{effort.retries}): others used {tries[-1][1].foreign_cores:.2f} cores" if tries else ""
            watch = meter()
            value = await run(number, f"repetition {rep + 1}/{effort.reps}{again}")
            tries.append((number, watch.read(), value))
            number += 1
            if not _noisy(tries[-1][1], effort) or len(tries) > effort.retries:
                break
        best = min(tries, key=lambda one: one[1].foreign_cores or 0.0)
        attempts += [Attempt(number=at, cpu=cpu, noisy=_noisy(cpu, effort), kept=at == best[0], value=value) for at, cpu, value in tries]
    return attempts


def _noisy(cpu: CpuUse, effort: Effort) -> bool:
    return cpu.foreign_cores is not None and cpu.foreign_cores > effort.max_foreign

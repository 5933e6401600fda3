"""Slot `observer` (provisional, any number): hears about steps and requests, for metrics, logs and traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from .block_allocator import AllocatorStats
from .types import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One committed step. Times are seconds of a monotonic clock."""

    number: int
    num_rows: int
    num_tokens: int
    num_output_tokens: int
    num_preempted: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    plan_seconds: float
    submit_seconds: float
    collect_seconds: float
    commit_seconds: float
    num_swapped: int = 0
    """Of num_preempted: those that were parked on the host."""
    num_copies: int = 0
    """Blocks copied before it: forks, parking, and coming back."""
    memory: AllocatorStats = field(default_factory=AllocatorStats)
    """Blocks by state, as in EngineStats: at most a step and a tenth of a second old."""
    plan_time: float = 0.0
    """When its planning began, as `time.perf_counter` has it: with steps in flight, before the step before it was committed."""
    num_blocks: int = 0
    """Blocks of the pool, whoever has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """One finished request, all its samples together. Times are seconds from its arrival; None: it never came so far."""

    request_id: str
    finish_reason: FinishReason
    num_samples: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    """Of all samples."""
    queue_seconds: float | None
    first_token_seconds: float | None
    total_seconds: float
    max_tokens: int = 0
    """What each sample might have generated: as asked for, or what the context left."""
    tenant: str = ""
    num_longest_tokens: int = 0
    """Output tokens of its longest sample."""


class Observer(Protocol):
    """Plain values, handed over on the engine's thread between steps: return at once, and leave slow work to a thread of your own.

    An observer that raises is reported once, by name, and dropped.
    """

    def on_step(self, stats: StepStats) -> None: ...

    def on_request(self, stats: RequestStats) -> None: ...


@runtime_checkable
class SupportsObservers(Protocol):
    """Optional, of frontends: parts of it hear about steps and requests, as if the configuration had named them."""

    @property
    def observers(self) -> Sequence[Observer]:
        """Read once, at composition."""
        ...

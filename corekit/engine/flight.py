"""A step in flight: what its commit has to know of its plan. Knows rows and counts; nothing of how they came about."""

from __future__ import annotations

from typing import NamedTuple

from .row import Row


class Flight(NamedTuple):
    """A submitted step that was not collected yet."""

    number: int
    rows: list[Row]
    num_tokens: int
    num_copies: int
    num_crossings: int
    """Of num_copies: those between device and host."""
    num_preempted: int
    """By its plan, and by plans before it that came to no step."""
    num_swapped: int
    plan_time: float
    plan_seconds: float
    submit_seconds: float

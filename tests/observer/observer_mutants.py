"""A right observer, and broken ones: one fault each, and the law that must see it."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from corekit.api import Provider, RequestStats, StepStats


class Right:
    """The median time to the first token of the last hundred requests, and the slowest step."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=100)
        self.median = self.slowest = 0.0

    def on_step(self, stats: StepStats) -> None:
        self.slowest = max(self.slowest, stats.plan_seconds + stats.submit_seconds + stats.collect_seconds + stats.commit_seconds)

    def on_request(self, stats: RequestStats) -> None:
        if stats.first_token_seconds is not None:
            self.seconds.append(stats.first_token_seconds)


class CountsOnAFirstToken(Right):
    def on_request(self, stats: RequestStats) -> None:
        self.line = f"{stats.request_id} {stats.first_token_seconds:.3f} s"


class DividesByTime(Right):
    def on_step(self, stats: StepStats) -> None:
        self.speed = stats.num_tokens / (stats.plan_seconds + stats.submit_seconds + stats.collect_seconds + stats.commit_seconds)


class TakesACacheForGranted(Right):
    def on_step(self, stats: StepStats) -> None:
        seen = stats.memory.residency
        self.line = f"blocks stay {seen.sum / sum(seen.counts):.1f} s, {seen.counts[0]} of them less than {seen.bounds[0]:g} s"


class AddsUp(Right):
    """In place, on what belongs to all."""

    def on_step(self, stats: StepStats) -> None:
        object.__setattr__(stats.memory, "num_evicted", stats.memory.num_evicted + 1)
        super().on_step(stats)


class Awaited(Right):
    async def on_request(self, stats: RequestStats) -> None:  # type: ignore[override]
        self.seconds.append(stats.total_seconds)


class HidesIds(Right):
    def on_request(self, stats: RequestStats) -> None:
        object.__setattr__(stats, "request_id", "hidden")
        super().on_request(stats)


class WritesAFile(Right):
    def on_step(self, stats: StepStats) -> None:
        with open("/dev/null", "a") as file:
            file.write(f"{stats.number}\n")


class SortsWhatItKeeps(Right):
    def __init__(self) -> None:
        super().__init__()
        self.seconds = deque(maxlen=1000)

    def on_request(self, stats: RequestStats) -> None:
        super().on_request(stats)
        self.median = median(self.seconds or [0.0])


class KeepsAllIds(Right):
    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}

    def on_request(self, stats: RequestStats) -> None:
        self.reasons[stats.request_id] = stats.finish_reason


class DatabaseOfOneThread(Right):
    def __init__(self) -> None:
        super().__init__()
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table requests (id, seconds)")

    def on_request(self, stats: RequestStats) -> None:
        self.database.execute("insert into requests values (?, ?)", (stats.request_id, stats.total_seconds))


MUTANTS: Mapping[type[Right], str] = {
    CountsOnAFirstToken: "test_any_request_is_taken",
    DividesByTime: "test_any_step_is_taken",
    Awaited: "test_nothing_is_returned",
    TakesACacheForGranted: "test_any_step_is_taken",
    AddsUp: "test_stats_stay_as_they_were",
    HidesIds: "test_stats_stay_as_they_were",
    WritesAFile: "test_it_returns_at_once",
    SortsWhatItKeeps: "test_the_cost_does_not_grow",
    KeepsAllIds: "test_memory_is_bounded",
    DatabaseOfOneThread: "test_it_hears_a_whole_engine",
}


def provider_of(part: type[Right]) -> Provider[Any]:
    return Provider(name="times", api=1, summary="times of requests, for a test", build=lambda context, options: part())

"""When requests are sent: who waits for whom in a closed loop, or the times of an open one. Knows numbers; nothing of what is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A closed loop of `concurrency` (None: all at once), or an open loop of `rate` or of `times`: at most one of the three is set."""

    concurrency: int | None = None
    rate: float | None = None
    """Requests per second, Poisson."""
    times: Sequence[float] | None = None
    """Seconds from the beginning of a repetition, ascending: one for each request."""
    seed: int = 0
    """Of `rate`: no two repetitions have the same gaps, and all have them again when they are asked for again."""

    def schedule(self, num_requests: int, number: int) -> Sequence[float] | None:
        """When each request of repetition `number` is sent, in seconds from its beginning; None: when another is answered."""
        if self.rate is not None:
            return poisson(self.rate, num_requests, self.seed + number)
        return self.times

    def facts(self, num_requests: int) -> Mapping[str, Any]:
        if self.rate is not None:
            return {"rate": self.rate, "seed": self.seed}
        if self.times is not None:
            rate = mean_rate(self.times)
            return {"rate": None if rate is None else float(f"{rate:.4g}"), "arrivals": "recorded"}
        return {"concurrency": self.concurrency or num_requests}


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Times of a Poisson process that begins with its first arrival: gaps are independent and exponential, with mean 1 / rate."""
    random, times = Random(seed), [0.0]
    for _ in range(count - 1):
        times.append(times[-1] + random.expovariate(rate))
    return times[:count]


def mean_rate(times: Sequence[float]) -> float | None:
    """Gaps per second of their sum; None where there is no time between the first and the last."""
    span = times[-1] - times[0] if times else 0.0
    return (len(times) - 1) / span if span > 0 else None

"""Percentiles and spreads. Knows numbers only, and refuses what has no answer: nothing at all, and values that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of one figure over repetitions. min <= median <= max."""

    min: float
    median: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of many samples of one kind. p50 <= p90 <= p99 <= max."""

    num_samples: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianInterval:
    """A median and two of the values, between which the median of the distribution lies with this probability."""

    num_samples: int
    low: float
    median: float
    high: float
    confidence: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of an ascending sequence lies, interpolated linearly between neighbours."""
    if not ordered:
        raise ValueError("a percentile needs at least one value, got none")
    if not 0.0 <= percent <= 100.0:
        raise ValueError(f"percent must be a number from 0 to 100, got {percent!r}")
    place = (len(ordered) - 1) * percent / 100.0
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Iterable[float]) -> Spread:
    ordered = _ordered(values)
    return Spread(min=percentile(ordered, 0), median=percentile(ordered, 50), max=ordered[-1])


def median_interval(values: Iterable[float], confidence: float = 0.95) -> MedianInterval:
    """By order statistics, whatever the distribution: the k-th smallest and the k-th largest, for the largest k that is sure enough.

    Fewer than k of n independent values fall on one side of the median with probability P(Binomial(n, 1/2) < k) (David and Nagaraja,
    Order Statistics, 7.1). Where not even the extremes are sure enough they are taken, and `confidence` says what they are worth.
    """
    ordered = _ordered(values)
    n, k, outside = len(ordered), 1, 2.0 * 0.5 ** len(ordered)
    while k < n // 2 and 1.0 - (wider := outside + 2.0 * math.comb(n, k) * 0.5**n) >= confidence:
        k, outside = k + 1, wider
    return MedianInterval(num_samples=n, low=ordered[k - 1], median=percentile(ordered, 50), high=ordered[n - k], confidence=max(0.0, 1.0 - outside))


def percentiles(values: Iterable[float]) -> Percentiles:
    ordered = _ordered(values)
    return Percentiles(
        num_samples=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


def _ordered(values: Iterable[float]) -> list[float]:
    ordered = sorted(map(float, values))
    if not ordered:
        raise ValueError("statistics need at least one value, got none")
    if not all(map(math.isfinite, ordered)):  # NaN would also have spoilt the order
        raise ValueError("statistics need finite values, got NaN or infinity")
    return ordered

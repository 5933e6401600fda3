"""Curves of repetitions: distributions, and what happened over time. Knows numbers; draws nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil

from .trace import Trace

Curve = tuple[Sequence[float], Sequence[float]]
"""x and y of each point."""

MAX_POINTS = 2000
"""Of a distribution: more than a plot has pixels."""
NUM_INTERVALS = 60
SHORTEST_INTERVAL = 0.1
"""Seconds: in a shorter one a step of the engine is all or nothing."""


def distribution(values: Iterable[float]) -> Curve:
    """The share of values up to x, as steps. Of very many every n-th is a point, the least and the greatest always."""
    ordered = sorted(values)
    stride = ceil(len(ordered) / MAX_POINTS)
    places = sorted({*range(0, len(ordered), max(1, stride)), len(ordered) - 1} - {-1})
    return [ordered[at] for at in places], [(at + 1) / len(ordered) for at in places]


def tokens_per_second(traces: Sequence[Trace]) -> Curve:
    """Output tokens of a repetition in equal intervals of its duration, at their middles.

    What a delivery held is not known: the tokens of a request are spread evenly over its deliveries.
    """
    began, ended = min(trace.began for trace in traces), max(trace.arrivals[-1] for trace in traces)
    num_intervals = max(1, min(NUM_INTERVALS, int((ended - began) / SHORTEST_INTERVAL)))
    width = (ended - began) / num_intervals
    counts = [0.0] * num_intervals
    for trace in traces:
        share = trace.num_output_tokens / len(trace.arrivals)
        for time in trace.arrivals:
            counts[min(int((time - began) / width), num_intervals - 1)] += share
    return [(at + 0.5) * width for at in range(num_intervals)], [count / width for count in counts]


def arrived_and_completed(traces: Sequence[Trace]) -> tuple[Curve, Curve]:
    """How many requests had come, and how many were answered, at each moment from the first that came."""
    began = min(trace.began for trace in traces)
    come = sorted(trace.began - began for trace in traces)
    done = sorted(trace.arrivals[-1] - began for trace in traces)
    numbers = list(accumulate(1 for _ in traces))
    return ([0.0, *come, done[-1]], [0, *numbers, numbers[-1]]), ([0.0, *done], [0, *numbers])

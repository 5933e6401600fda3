"""Metric families from plain values. Knows their text form's library; nothing of what is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from corekit.api import Durations

from .distribution import Distribution


def by(
    name: str, meaning: str, label: str, values: Mapping[str, float], kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily
) -> GaugeMetricFamily | CounterMetricFamily:
    """One number for each value of a label."""
    family = kind(name, meaning, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


def durations(name: str, meaning: str, seen: Durations) -> Iterator[Metric]:
    """A histogram; nothing where nothing is measured."""
    if seen.bounds:
        yield distributions(name, meaning, (), {(): seen})


def distribution(name: str, meaning: str, seen: Distribution) -> Metric:
    """A histogram without labels."""
    return distributions(name, meaning, (), {(): seen.seen()})


def distributions(name: str, meaning: str, labels: tuple[str, ...], seen: Mapping[tuple[str, ...], Durations]) -> Metric:
    """A histogram for each combination of values of the labels."""
    family = HistogramMetricFamily(name, meaning, labels=labels)
    for values, one in seen.items():
        bounds = (*map(floatToGoString, one.bounds), "+Inf")
        family.add_metric(values, list(zip(bounds, accumulate(one.counts), strict=True)), one.sum)
    return family

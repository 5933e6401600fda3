"""Percentiles and spreads agree with numpy, and refuse what has no answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.bench.statistics import percentile, percentiles, spread

values = st.lists(st.floats(min_value=0, max_value=1e6, allow_nan=False), min_size=1, max_size=60)


@given(values, st.floats(min_value=0, max_value=100))
def test_percentile_is_numpys(numbers: list[float], percent: float) -> None:
    assert percentile(sorted(numbers), percent) == pytest.approx(float(np.percentile(numbers, percent)), rel=1e-9, abs=1e-9)


@given(values)
def test_percentiles_and_spread_are_numpys_whatever_the_order(numbers: list[float]) -> None:
    found, wide = percentiles(numbers), spread(reversed(numbers))
    expected = [float(np.percentile(numbers, q)) for q in (50, 90, 99)]
    assert [found.p50, found.p90, found.p99] == pytest.approx(expected)
    assert found.mean == pytest.approx(float(np.mean(numbers)))
    assert found.num_samples == len(numbers)
    assert (wide.min, wide.max) == (min(numbers), max(numbers))
    assert wide.median == pytest.approx(float(np.median(numbers)))


@pytest.mark.parametrize("numbers", [[], [math.nan], [1.0, math.nan, 2.0], [math.inf]])
def test_what_has_no_answer_is_refused(numbers: list[float]) -> None:
    with pytest.raises(ValueError, match=r"at least one value|finite"):
        percentiles(numbers)
    with pytest.raises(ValueError, match=r"at least one value|finite"):
        spread(numbers)


@pytest.mark.parametrize("percent", [-0.1, 100.1, math.nan])
def test_percent_has_bounds(percent: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 100"):
        percentile([1.0], percent)

"""Quantiles of what was seen lately, beside those of the values themselves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.scheduler.sliding_histogram import GROWTH, SMALLEST, Quantiles, SlidingHistogram

SHARES = (0.5, 0.9, 0.99, 1.0)


def test_nothing_has_no_quantiles() -> None:
    assert SlidingHistogram(60).quantiles(SHARES, 5.0) == Quantiles(0)


@given(st.lists(st.floats(SMALLEST, 10_000), min_size=1, max_size=200))
def test_quantiles_are_right_but_for_the_width_of_a_bucket(values: list[float]) -> None:
    histogram = SlidingHistogram(60)
    for value in values:
        histogram.add(value, 1.0)
    found = histogram.quantiles(SHARES, 1.0)
    assert found.count == len(values)
    for share, quantile in zip(SHARES, found.values, strict=True):
        exact = sorted(values)[math.ceil(share * len(values)) - 1]
        assert quantile == pytest.approx(exact, rel=GROWTH - 1)


@pytest.mark.parametrize("value", [0.0, SMALLEST / 3, SMALLEST])
def test_the_shortest_durations_are_one(value: float) -> None:
    histogram = SlidingHistogram(60)
    histogram.add(value, 1.0)
    assert histogram.quantiles([0.5], 1.0).values == (SMALLEST,)


def test_what_was_long_ago_is_forgotten() -> None:
    histogram = SlidingHistogram(60)
    histogram.add(1.0, 0.0)
    histogram.add(5.0, 30.0)
    assert histogram.quantiles([1.0], 54.9).count == 2
    assert histogram.quantiles([0.01], 61.0).values[0] == pytest.approx(5.0, rel=0.05)
    assert histogram.quantiles([1.0], 91.0).count == 0
    histogram.add(2.0, 1000.0)
    assert histogram.quantiles([1.0], 1000.0).count == 1


def test_what_it_holds_does_not_grow_with_what_it_counts() -> None:
    histogram = SlidingHistogram(60)
    for number in range(20_000):
        histogram.add(0.01 + number % 7, number * 0.01)
    parts = histogram._parts
    assert len(parts) <= SlidingHistogram.PARTS
    assert all(len(counts) <= 7 for _, counts in parts)

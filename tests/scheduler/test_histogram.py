"""Histograms, against counting one value after the other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.scheduler.histogram import Histogram, HistogramSnapshot, steps_of_1_2_5

numbers = st.floats(-10, 10)


@given(st.lists(numbers, unique=True, max_size=6).map(sorted), st.lists(numbers))
def test_each_value_counts_for_every_bound_that_it_does_not_exceed(bounds: list[float], values: list[float]) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    snapshot = histogram.snapshot()
    assert list(snapshot.cumulative()) == [
        (bound, sum(value <= bound for value in values)) for bound in [*bounds, math.inf]
    ]
    assert snapshot.count == len(values)
    assert snapshot.sum == pytest.approx(sum(values))


def test_a_snapshot_does_not_change() -> None:
    histogram = Histogram([1])
    before = histogram.snapshot()
    histogram.observe(0.5)
    assert (before.count, histogram.snapshot().count) == (0, 1)


@pytest.mark.parametrize("bounds", [[2, 1], [1, 1]])
def test_bounds_must_ascend(bounds: list[float]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Histogram(bounds)


@pytest.mark.parametrize(
    ("most", "bounds"),
    [(1, (1,)), (4, (1, 2)), (100, (1, 2, 5, 10, 20, 50, 100)), (128, (1, 2, 5, 10, 20, 50, 100))],
)
def test_bounds_for_tokens_go_up_to_what_there_can_be(most: int, bounds: tuple[int, ...]) -> None:
    assert steps_of_1_2_5(most) == bounds


def test_nothing_is_a_histogram_too() -> None:
    assert list(HistogramSnapshot().cumulative()) == [(math.inf, 0)]

"""What a client is told that was turned away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.scheduler.waits import WaitEstimator


def test_before_anything_is_known_the_guess_is_a_short_while() -> None:
    assert 0 < WaitEstimator(8).retry_after() <= 5


def test_places_come_free_one_after_the_other() -> None:
    waits = WaitEstimator(places=4)
    for _ in range(10):
        waits.observe(2.0)
    assert waits.retry_after() == pytest.approx(0.5)


@given(places=st.integers(1, 64), kept=st.lists(st.floats(0, 1000), min_size=1))
def test_the_estimate_stays_within_what_was_seen(places: int, kept: list[float]) -> None:
    waits = WaitEstimator(places)
    for seconds in kept:
        waits.observe(seconds)
    assert min(kept) - 1e-9 <= waits.retry_after() * places <= max(kept) + 1e-9


def test_the_estimate_follows_a_change() -> None:
    waits = WaitEstimator(places=1)
    waits.observe(1.0)
    for _ in range(50):
        waits.observe(10.0)
    assert waits.retry_after() == pytest.approx(10.0, rel=0.1)

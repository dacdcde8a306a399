"""Recent values, and their quantiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import Level
from llamalane.scheduler.quantiles import LevelQuantiles, QuantileWindow, likely_duration

values = st.lists(st.integers(0, 20))
shares = st.sampled_from([0.01, 0.25, 0.5, 0.75, 0.8, 1.0])


@given(seen=values, size=st.integers(1, 8), floor=st.integers(-1, 21), share=shares)
def test_a_quantile_is_that_of_the_recent_values_above_the_floor(
    seen: list[int], size: int, floor: int, share: float
) -> None:
    window: QuantileWindow[int] = QuantileWindow(size)
    for value in seen:
        window.add(value)
    above = [value for value in seen[-size:] if value > floor]
    not_exceeded = (value for value in sorted(above) if sum(other <= value for other in above) >= share * len(above))
    assert window.quantile_above(floor, share) == next(not_exceeded, None)
    assert len(window) == min(len(seen), size)


@given(seen=st.lists(st.integers(0, 20), min_size=1), size=st.integers(1, 8))
def test_the_mean_is_that_of_the_recent_values(seen: list[int], size: int) -> None:
    window: QuantileWindow[int] = QuantileWindow(size)
    for value in seen:
        window.add(value)
    recent = seen[-size:]
    assert window.mean == pytest.approx(sum(recent) / len(recent))


def test_a_window_holds_something() -> None:
    with pytest.raises(ValueError, match="got 0"):
        QuantileWindow(0)


def test_a_duration_is_like_those_that_lasted_longer_than_it_has() -> None:
    window: QuantileWindow[float] = QuantileWindow(10)
    for duration in (2.0, 4.0, 6.0, 8.0):
        window.add(duration)
    assert likely_duration(window, age=0, share=0.5, guess=1) == 4
    assert likely_duration(window, age=3, share=0.5, guess=1) == 6
    assert likely_duration(window, age=7.9, share=0.01, guess=1) == 8


def test_what_is_overdue_will_be_so_for_a_while() -> None:
    window: QuantileWindow[float] = QuantileWindow(10)
    for _ in range(4):
        window.add(4.0)
    assert likely_duration(window, age=4.5, share=0.5, guess=1) == 5
    assert likely_duration(window, age=40, share=0.5, guess=1) == 76
    assert likely_duration(window, age=4.5, share=0.9, guess=1) == pytest.approx(9)


def test_a_duration_of_which_nothing_is_known_is_guessed() -> None:
    assert likely_duration(None, age=0.5, share=0.5, guess=1) == 2
    assert likely_duration(None, age=3, share=0.5, guess=1) == 6


def test_a_level_is_spoken_for_by_all_of_them_until_enough_was_seen_of_it() -> None:
    levels: LevelQuantiles[int] = LevelQuantiles(size=10, enough=2)
    assert levels.window(Level(1)) is None
    levels.add(Level(1), 1)
    assert levels.window(Level(1)) is None
    levels.add(Level(2), 20)
    for level in (Level(1), Level(2), Level(3)):
        pooled = levels.window(level)
        assert pooled is not None
        assert pooled.quantile_above(0, 1.0) == 20
    levels.add(Level(1), 3)
    own = levels.window(Level(1))
    assert own is not None
    assert own.quantile_above(0, 1.0) == 3

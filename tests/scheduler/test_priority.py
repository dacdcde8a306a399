"""What a priority may be called, and how waiting makes a request more urgent."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import InvalidPriorityError
from llamalane.ids import LEAST_URGENT, MOST_URGENT, Level
from llamalane.scheduler.priority import LEVELS, Aging, PriorityLevels

LEVEL_NAMES = {"interactive": 1, "chat": 1, "normal": 3, "batch": 5}
PRIORITIES = PriorityLevels(LEVEL_NAMES, default=Level(3))


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_named_by_its_number(level: Level) -> None:
    assert PRIORITIES.parse(level) == level
    assert PRIORITIES.parse(str(level)) == level


@pytest.mark.parametrize(("name", "level"), LEVEL_NAMES.items())
def test_a_level_is_named_by_any_of_its_names(name: str, level: int) -> None:
    assert PRIORITIES.parse(name) == level


def test_no_priority_is_the_default_one() -> None:
    assert PRIORITIES.parse(None) == 3


def test_a_name_goes_before_digits() -> None:
    assert PriorityLevels({"5": 1}, default=Level(3)).parse("5") == 1


@pytest.mark.parametrize(
    "value",
    [0, 6, -1, 2**70, True, False, 3.0, "", " 3", "3 ", "+3", "03", "0", "6", "-1", "3.0", "٣", "³", "Normal", b"3"],
)
def test_anything_else_is_refused_with_the_range_and_the_names(value: object) -> None:
    with pytest.raises(InvalidPriorityError, match=r"from 1 .* to 5 .*interactive, chat, normal, batch") as caught:
        PRIORITIES.parse(cast(str, value))
    assert caught.value.value == value
    assert caught.value.param == "priority"


def test_a_number_too_long_to_be_read_is_refused_too() -> None:
    with pytest.raises(InvalidPriorityError):
        PRIORITIES.parse("1" * 10_000)


@given(st.integers() | st.text())
def test_nothing_but_a_level_comes_out(value: int | str) -> None:
    try:
        level = PRIORITIES.parse(value)
    except InvalidPriorityError:
        return
    assert level in LEVELS


def test_a_level_is_called_by_its_first_name_or_its_number() -> None:
    assert PRIORITIES.name(Level(1)) == "interactive"
    assert PRIORITIES.name(Level(2)) == "2"
    assert PRIORITIES.most_urgent == MOST_URGENT == 1
    assert PRIORITIES.least_urgent == LEAST_URGENT == 5


@given(level=st.sampled_from(LEVELS), arrival=st.integers(0, 1000), ceiling=st.sampled_from(LEVELS))
def test_waiting_lifts_a_request_by_one_level_an_interval_up_to_the_ceiling(
    level: Level, arrival: int, ceiling: int
) -> None:
    aging = Aging(ceiling, interval=10)
    fresh_at_ceiling = aging.key(Level(ceiling), arrival + max(level - ceiling, 0) * 10)
    if level >= ceiling:
        assert aging.key(level, arrival) == fresh_at_ceiling
    else:
        assert aging.key(level, arrival) < aging.key(Level(ceiling), 0)

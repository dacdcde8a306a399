"""What is kept for those who were told to come back, against an oracle that goes through all promises each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import Level
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.returns import GRACE, MOST_PROMISES, PromisedReturns

NORMAL = Level(3)


class PlainReturns:
    """All promises that were ever made and not taken up."""

    def __init__(self) -> None:
        self.promises: list[tuple[float, Level]] = []

    def ask(self, level: Level, now: float) -> int:
        due = [moment for moment, whose in self.promises if whose == level and moment <= now <= moment + GRACE]
        if due:
            self.promises.remove((min(due), level))
        kept_from = [better for better in LEVELS if better < level or (better == level and not due)]
        return sum(moment > now and whose in kept_from for moment, whose in self.promises)


operations = st.lists(
    st.tuples(
        st.sampled_from(["promise", "promise", "ask", "look"]),
        st.sampled_from(LEVELS),
        st.sampled_from([0.0, 0.25, GRACE, 0.75, 2.0, 100.0]),
    ),
    max_size=60,
)


@given(operations)
def test_slots_are_kept_from_whoever_is_no_better_until_they_are_due(steps: list[tuple[str, Level, float]]) -> None:
    returns, plain, now = PromisedReturns(), PlainReturns(), 0.0
    for operation, level, seconds in steps:
        if operation == "promise":
            returns.promise(level, now + seconds)
            plain.promises.append((now + seconds, level))
            continue
        now += seconds
        if operation == "ask":
            assert returns.ask(level, now) == plain.ask(level, now)
        else:
            coming = sum(moment > now and whose <= level for moment, whose in plain.promises)
            assert 0.4 * coming <= returns.expected(level, now) <= coming


def test_whoever_asks_first_at_the_moment_has_the_slot() -> None:
    returns = PromisedReturns()
    for moment in (10.0, 10.0, 11.0):
        returns.promise(NORMAL, moment)
    assert returns.ask(NORMAL, 9.9) == 3
    assert returns.ask(Level(2), 10.0) == 0, "whoever is more urgent is kept from nothing"
    assert returns.ask(NORMAL, 10.0) == returns.ask(NORMAL, 10.0) == 0
    assert returns.ask(NORMAL, 10.0) == 1


def test_what_is_kept_for_more_urgent_ones_is_kept_from_those_who_come_back_as_well() -> None:
    returns = PromisedReturns()
    returns.promise(NORMAL, 10.0)
    returns.promise(Level(1), 11.0)
    assert returns.ask(NORMAL, 10.0) == 1


def test_who_needs_several_slots_has_them_all() -> None:
    returns = PromisedReturns()
    returns.promise(NORMAL, 10.0, slots=2)
    returns.promise(NORMAL, 11.0)
    assert [returns.ask(NORMAL, 10.0) for _ in range(3)] == [0, 0, 1]


def test_a_promise_that_nobody_takes_up_is_soon_forgotten() -> None:
    returns = PromisedReturns()
    returns.promise(NORMAL, 10.0)
    returns.promise(NORMAL, 20.0)
    assert returns.ask(NORMAL, 10.0 + 1.1 * GRACE) == 1
    assert returns.ask(NORMAL, 1e6) == 0
    assert returns.expected(NORMAL, 1e6) == 0


@pytest.mark.parametrize("one_in", [1, 2])
def test_it_is_learnt_level_by_level_how_many_come_back(one_in: int) -> None:
    returns = PromisedReturns()
    for number in range(400):
        moment = 10.0 * (number + 1)
        returns.promise(NORMAL, moment)
        if number % one_in == 0:
            returns.ask(NORMAL, moment)
    now = 4001.0
    for level in (NORMAL, Level(4)):
        for _ in range(100):
            returns.promise(level, now + 1)
    assert returns.expected(NORMAL, now) == pytest.approx(100 / one_in, rel=0.1)
    assert returns.expected(Level(4), now) == pytest.approx(100 / one_in + 100, rel=0.1)


def test_there_is_a_limit_to_promises() -> None:
    returns = PromisedReturns()
    returns.promise(Level(1), 10.0, slots=MOST_PROMISES - 1)
    returns.promise(NORMAL, 10.0, slots=3)
    assert returns.ask(NORMAL, 0.0) == MOST_PROMISES

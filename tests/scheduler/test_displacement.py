"""Who gives way to whom: the policy alone, against a naive oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import Level
from llamalane.scheduler.displacement import DisplacementPolicy
from llamalane.scheduler.priority import LEVELS

MOST_PARKS = 3


@dataclass(frozen=True)
class Runner:
    """A running request, and what parking it would cost."""

    level: Level
    order: int
    sheltered: bool = False
    parks_in_a_row: int = 0
    loss: float = 0.0


def runner(level: int, order: int = 1, *, loss: float = 0.0, sheltered: bool = False, parks: int = 0) -> Runner:
    return Runner(Level(level), order, sheltered, parks, loss)


def loss(one: Runner) -> float:
    return one.loss


levels = st.sampled_from(LEVELS)
runners = st.builds(
    Runner,
    level=levels,
    order=st.integers(1, 1000),
    sheltered=st.booleans(),
    parks_in_a_row=st.integers(0, MOST_PARKS + 1),
    loss=st.sampled_from([0.0, 0.1, 0.5]),
)
crowds = st.lists(runners, max_size=8, unique_by=lambda one: one.order)


def take_one_by_one(running: Sequence[Runner], better: Callable[[Runner, Runner], bool]) -> list[Runner]:
    """Take out, again and again, the one that is `better` than all the others."""
    left, taken = list(running), []
    while left:
        best = next(one for one in left if all(better(one, other) for other in left if other is not one))
        left.remove(best)
        taken.append(best)
    return taken


def gives_way_before(one: Runner, other: Runner) -> bool:
    if one.level != other.level:
        return one.level > other.level
    if one.loss != other.loss:
        return one.loss < other.loss
    return one.order > other.order


def yields_before(one: Runner, other: Runner) -> bool:
    if one.sheltered != other.sheltered:
        return other.sheltered
    if one.level != other.level:
        return one.level > other.level
    return one.order > other.order


@given(level=levels, running=crowds, most_parks=st.integers(0, MOST_PARKS))
def test_the_least_urgent_give_way_first_then_those_that_lose_least_then_the_youngest(
    level: Level, running: list[Runner], most_parks: int
) -> None:
    may = [one for one in running if one.level > level and not one.sheltered and one.parks_in_a_row + 1 <= most_parks]
    victims = DisplacementPolicy(most_parks).victims(level, running, loss)
    assert victims == take_one_by_one(may, gives_way_before)


@given(one=runners, other=runners)
def test_no_two_requests_can_displace_each_other(one: Runner, other: Runner) -> None:
    policy = DisplacementPolicy(MOST_PARKS)
    assert not (policy.victims(one.level, [other], loss) and policy.victims(other.level, [one], loss))


@given(running=crowds)
def test_whoever_yields_next_is_the_least_urgent_and_youngest_and_the_sheltered_come_last(
    running: list[Runner],
) -> None:
    left, yielded = list(running), []
    while (first := DisplacementPolicy.first_to_yield(left)) is not None:
        left.remove(first)
        yielded.append(first)
    assert yielded == take_one_by_one(running, yields_before)


@given(level=levels, orders=st.sets(st.integers(1, 1000), min_size=1, max_size=8))
def test_among_equals_the_oldest_is_the_last_to_yield(level: Level, orders: set[int]) -> None:
    left = [runner(level, order) for order in orders]
    while len(left) > 1:
        first = DisplacementPolicy.first_to_yield(left)
        assert first is not None
        left.remove(first)
    assert left[0].order == min(orders)


@pytest.mark.parametrize("level", LEVELS)
def test_nobody_gives_way_to_an_equal_or_to_a_less_urgent_one(level: int) -> None:
    running = [runner(better, better) for better in range(1, level + 1)]
    assert DisplacementPolicy(MOST_PARKS).victims(Level(level), running, loss) == []


def test_a_sheltered_request_never_gives_way_to_a_more_urgent_one() -> None:
    assert DisplacementPolicy(MOST_PARKS).victims(Level(1), [runner(5, sheltered=True)], loss) == []


def test_a_sheltered_request_yields_its_cells_when_there_is_nobody_else() -> None:
    sheltered, urgent = runner(5, 1, sheltered=True), runner(1, 2)
    assert DisplacementPolicy.first_to_yield([sheltered, urgent]) is urgent
    assert DisplacementPolicy.first_to_yield([sheltered]) is sheltered


def test_a_request_that_was_parked_too_often_in_a_row_does_not_give_way() -> None:
    often, too_often = runner(5, 1, parks=MOST_PARKS - 1), runner(5, 2, parks=MOST_PARKS)
    assert DisplacementPolicy(MOST_PARKS).victims(Level(1), [often, too_often], loss) == [often]


def test_without_parks_nobody_gives_way_but_cells_have_to_come_from_somewhere() -> None:
    batch = runner(5)
    assert DisplacementPolicy(0).victims(Level(1), [batch], loss) == []
    assert DisplacementPolicy(0).first_to_yield([batch]) is batch


def test_a_smaller_loss_never_outweighs_a_better_level() -> None:
    dear, cheap = runner(5, 1, loss=9.0), runner(4, 2, loss=0.0)
    assert DisplacementPolicy(MOST_PARKS).victims(Level(1), [cheap, dear], loss) == [dear, cheap]

"""How long waiting takes: what those who wait are told, and those who were turned away."""

from __future__ import annotations

import heapq
import math
from functools import partial
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import Level, RequestId
from llamalane.scheduler.waits import ENOUGH, FIRST_GUESS, SHORTEST, WaitPredictor
from tests.scheduler.waiting_room import MEAN, WaitingRoom, let_arrive, room_of

NORMAL = Level(3)


def request(number: int) -> RequestId:
    return RequestId(f"request-{number}")


def experienced(seconds: float, level: Level = NORMAL, waits: WaitPredictor | None = None) -> WaitPredictor:
    """A predictor that has seen requests keep their places for so long, until the moment 0."""
    waits = waits or WaitPredictor()
    for number in range(ENOUGH):
        waits.observe_admission(request(-number), level, now=-seconds)
        waits.observe_release(request(-number), now=0.0)
    return waits


def test_before_anything_is_known_the_guess_is_a_short_while() -> None:
    waits = WaitPredictor()
    assert FIRST_GUESS <= waits.retry_after(NORMAL, 0.0) <= 2 * FIRST_GUESS
    assert waits.estimated_wait(0, NORMAL, 0.0) == pytest.approx(FIRST_GUESS, rel=0.5)


def test_without_experience_what_runs_is_thought_to_run_about_as_long_again() -> None:
    waits = WaitPredictor()
    waits.observe_admission(request(1), NORMAL, now=0.0)
    assert 2.5 <= waits.estimated_wait(0, NORMAL, now=5.0) <= 10
    assert 25 <= waits.estimated_wait(0, NORMAL, now=50.0) <= 100


def test_the_age_of_what_runs_counts() -> None:
    waits = experienced(10.0)
    waits.observe_admission(request(1), NORMAL, now=0.0)
    assert waits.estimated_wait(0, NORMAL, now=0.0) == pytest.approx(10)
    assert waits.estimated_wait(0, NORMAL, now=7.0) == pytest.approx(3)
    assert waits.estimated_wait(1, NORMAL, now=7.0) == pytest.approx(13)
    assert 3 <= waits.retry_after(NORMAL, now=7.0) <= 6


def test_levels_keep_their_places_for_times_of_their_own() -> None:
    waits = experienced(1.0, Level(1), experienced(100.0, Level(5)))
    waits.observe_admission(request(1), Level(5), now=0.0)
    assert waits.estimated_wait(0, NORMAL, now=0.0) == pytest.approx(100)
    waits.observe_admission(request(2), Level(1), now=0.0)
    assert waits.estimated_wait(0, NORMAL, now=0.0) == pytest.approx(1)


def test_those_who_are_turned_away_are_told_to_come_one_after_another() -> None:
    waits = experienced(10.0)
    for number in range(2):
        waits.observe_admission(request(number), NORMAL, now=5.0 * number)
    told = [waits.retry_after(NORMAL, now=6.0) for _ in range(4)]
    for seconds, release in zip(told, (4, 9, 14, 19), strict=True):
        assert release <= seconds <= 1.5 * release
    later = waits.retry_after(NORMAL, now=6.0 + told[0])
    assert told[3] - told[0] <= later, "three are still to come"


def test_who_needs_more_slots_comes_later() -> None:
    waits = experienced(10.0)
    waits.observe_admission(request(1), NORMAL, now=0.0)
    assert 30 <= waits.retry_after(NORMAL, now=0.0, slots=3) <= 45


def test_what_lost_its_place_early_teaches_nothing() -> None:
    waits = experienced(10.0)
    for number in range(100):
        waits.observe_admission(request(number), NORMAL, now=0.0)
        waits.observe_release(request(number), now=0.1, finished=False)
    waits.observe_release(request(0), now=0.2)
    waits.observe_admission(request(1), NORMAL, now=1.0)
    assert waits.estimated_wait(0, NORMAL, now=1.0) == pytest.approx(10)


def test_a_change_is_followed_even_after_long_idleness() -> None:
    waits = experienced(1.0)
    for number in range(300):
        waits.observe_admission(request(number), NORMAL, now=1e6)
        waits.observe_release(request(number), now=1e6 + 20)
    waits.observe_admission(request(1), NORMAL, now=2e6)
    assert waits.estimated_wait(0, NORMAL, now=2e6) == pytest.approx(20)
    assert 20 <= waits.retry_after(NORMAL, now=2e6) <= 30


@given(
    ages=st.lists(st.integers(0, 39), min_size=1, max_size=6),
    ahead=st.integers(0, 40),
)
def test_with_one_service_time_for_all_the_wait_is_exact(ages: list[int], ahead: int) -> None:
    waits = experienced(40.0)
    for number, age in enumerate(ages):
        waits.observe_admission(request(number), NORMAL, now=100.0 - age)
    releases = [40.0 - age for age in ages]
    heapq.heapify(releases)
    for _ in range(ahead):
        heapq.heapreplace(releases, releases[0] + 40.0)
    assert waits.estimated_wait(ahead, NORMAL, now=100.0) == pytest.approx(releases[0])


operations = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "admit", "release", "park", "refuse", "pass"]),
        st.integers(0, 5),
        st.sampled_from([0.0, 0.01, 1.0, 500.0]),
    )
)


@given(operations, st.integers(1, 5))
def test_every_estimate_is_a_time_and_no_one_further_behind_waits_less(
    steps: list[tuple[str, int, float]], level: int
) -> None:
    waits, now = WaitPredictor(), 0.0
    for operation, number, seconds in steps:
        now += seconds
        if operation == "arrive":
            waits.observe_arrival(Level(max(number, 1)), now)
        elif operation == "admit":
            waits.observe_admission(request(number), Level(max(number, 1)), now)
        elif operation in ("release", "park"):
            waits.observe_release(request(number), now, finished=operation == "release")
        elif operation == "refuse":
            assert SHORTEST <= waits.retry_after(NORMAL, now) < math.inf
    told = [waits.estimated_wait(ahead, Level(level), now) for ahead in (0, 1, 2, 5, 10, 100, 1000)]
    assert told == sorted(told)
    assert SHORTEST <= told[0] <= told[-1] < math.inf
    refused = [waits.retry_after(NORMAL, now) for _ in range(20)]
    assert refused == pytest.approx(sorted(refused))


# Simulations. Where service times are drawn at random, so is the moment of the next release, and nobody can tell it:
# the bounds leave room for that.


def check_waits(rooms: list[WaitingRoom], level: int) -> None:
    """Check that four in five waited from half to twice as long as they were told."""
    waited = [wait for room in rooms for wait in room.waited if wait.level == level]
    assert len(waited) > 200
    assert fmean(wait.told_well for wait in waited) >= 0.8


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("fixed", 1),
        ("fixed", 4),
        ("uniform", 1),
        ("uniform", 4),
        ("lognormal", 1),
        ("lognormal", 4),
        ("exponential", 16),
    ],
)
def test_waits_are_foretold_within_a_factor_of_two(name: str, places: int) -> None:
    room, chance = room_of(places, name, seed=1)
    room.foretelling = True
    let_arrive(room, chance, 0.9, 0, 800 * MEAN / places)
    room.run()
    check_waits([room], level=3)


def test_waits_of_the_least_urgent_are_foretold_although_others_overtake_them() -> None:
    rooms = []
    for seed in range(3):
        room, chance = room_of(4, "lognormal", seed, slots=1000)
        room.foretelling = True
        let_arrive(room, chance, 0.6, 0, 300 * MEAN, level=1)
        for batch in range(6):
            for _ in range(40):
                room.at((50 * batch + 10) * MEAN, partial(room.arrive, level=5))
        room.run()
        rooms.append(room)
    check_waits(rooms, level=5)

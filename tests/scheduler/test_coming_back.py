"""What `retry_after` promises: four of five who come back when told to find a slot, and are not told to come too late.

Too late is more than twice as long as until their turn, when as many slots had come free as were taken by newcomers and
by those who had been turned away before, and one more. Service times are drawn at random, and so is the moment of the
next free slot: nobody can foretell a single one, and the promise is one for many.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import fmean

import pytest

from llamalane.errors import QueueFullError, RequestShedError
from llamalane.ids import Level
from tests.scheduler.harness import Start, error_of
from tests.scheduler.waiting_room import MEAN, SERVICE_TIMES, Obey, WaitingRoom, let_arrive, room_of

NORMAL = Level(3)
SUCCESS = 0.8
LATENESS = 2.0
PERIOD = 60 * MEAN

BEHAVIOURS: dict[str, Callable[[random.Random], Obey]] = {
    "on time": lambda chance: float,
    "at whole seconds": lambda chance: math.ceil,
    "a moment late": lambda chance: lambda told: told + chance.uniform(0, 0.1),
    "half of them never": lambda chance: lambda told: told if chance.random() < 0.5 else None,
}
"""How clients come back who were turned away."""


def check_promise(rooms: list[WaitingRoom], level: Level = NORMAL) -> None:
    retries = [got for room in rooms for whose, got in room.retries if whose == level]
    turns = [(refusal.told, room.turn_of(refusal)) for room in rooms for refusal in room.refusals_of(level)]
    known = [(told, turn) for told, turn in turns if turn is not None]
    assert len(retries) > 200
    assert len(known) > 200
    assert fmean(retries) >= SUCCESS
    assert fmean(told for told, _ in known) <= LATENESS * fmean(turn for _, turn in known)


def let_bursts_arrive(room: WaitingRoom, chance: random.Random) -> None:
    """Let many come at once, now and then, each time when nobody is left."""
    for burst in range(12):
        for client in range(int(5 * room.places * chance.uniform(1, 2)) + 3):
            room.at(burst * PERIOD + 0.01 * client, room.arrive)


def let_newcomers_fill(room: WaitingRoom, chance: random.Random, load: float, periods: int) -> None:
    """Let `load` times as many come as can be served, and after a while so few that those turned away catch up."""
    for period in range(periods):
        start = 2 * period * PERIOD
        let_arrive(room, chance, load, start, start + PERIOD)
        let_arrive(room, chance, 0.3, start + PERIOD, start + 2 * PERIOD)


@pytest.mark.parametrize("behaviour", ["on time", "half of them never"])
@pytest.mark.parametrize("places", [1, 4, 16])
@pytest.mark.parametrize("name", SERVICE_TIMES)
def test_after_a_burst(name: str, places: int, behaviour: str) -> None:
    rooms = []
    for seed in range(1 + 8 // places):
        room, chance = room_of(places, name, seed)
        room.obey = BEHAVIOURS[behaviour](chance)
        let_bursts_arrive(room, chance)
        room.run()
        rooms.append(room)
    check_promise(rooms)


@pytest.mark.parametrize(
    ("behaviour", "places", "load", "seeds"),
    [
        ("on time", 1, 1.5, 6),
        ("on time", 1, 3.0, 3),
        ("on time", 4, 1.0, 16),
        ("on time", 4, 1.5, 1),
        ("on time", 4, 3.0, 1),
        ("at whole seconds", 4, 1.5, 1),
        ("a moment late", 4, 1.5, 1),
        ("half of them never", 1, 1.5, 6),
        ("half of them never", 4, 1.0, 24),
        ("half of them never", 4, 1.5, 1),
    ],
)
@pytest.mark.parametrize("name", SERVICE_TIMES)
def test_while_newcomers_alone_fill_the_queue(name: str, behaviour: str, places: int, load: float, seeds: int) -> None:
    rooms = []
    for seed in range(seeds):
        room, chance = room_of(places, name, seed)
        room.obey = BEHAVIOURS[behaviour](chance)
        let_newcomers_fill(room, chance, load, periods=3)
        room.run()
        rooms.append(room)
    check_promise(rooms)


@pytest.mark.parametrize("name", SERVICE_TIMES)
def test_while_more_urgent_ones_take_most_of_the_places(name: str) -> None:
    rooms = []
    for seed in range(3):
        room, chance = room_of(4, name, seed)
        for load, level in ((0.6, 1), (0.8, 5)):
            let_arrive(room, chance, load, 0, PERIOD, level)
        room.run()
        rooms.append(room)
    check_promise(rooms, Level(5))


@pytest.mark.parametrize("name", SERVICE_TIMES)
def test_who_is_urgent_need_not_wait_for_all_who_are_less_urgent_and_were_turned_away_before(name: str) -> None:
    rooms = []
    for seed in range(6):
        room, chance = room_of(4, name, seed)
        let_arrive(room, chance, 0.8, 0, PERIOD, level=2)
        let_arrive(room, chance, 1.0, 0, PERIOD, level=5)
        room.run()
        rooms.append(room)
    check_promise(rooms, Level(2))
    urgent, others = ([refusal.told for room in rooms for refusal in room.refusals_of(Level(one))] for one in (2, 5))
    assert fmean(urgent) < fmean(others) / 5


@pytest.mark.parametrize("name", SERVICE_TIMES)
def test_beside_others_who_ask_again_and_again(name: str) -> None:
    rooms = []
    for seed in range(3):
        room, chance = room_of(4, name, seed)
        let_arrive(room, chance, 1.3, 0, PERIOD, level=3)
        let_arrive(room, chance, 0.1, 0, PERIOD, level=4, obey=lambda told: 1.0)
        room.run(until=1.5 * PERIOD)
        rooms.append(room)
    check_promise(rooms)


@pytest.mark.parametrize("places", [1, 4])
def test_clients_who_never_come_back_leave_no_place_idle(places: int) -> None:
    room, chance = room_of(places, "lognormal", seed=1)
    room.obey = lambda told: None
    let_arrive(room, chance, 1.5, 0, 10 * PERIOD)
    room.run()
    assert room.served >= 0.97 * 10 * PERIOD * places / MEAN


@pytest.mark.parametrize("slots", [1, 2, 3, 10])
def test_nobody_is_turned_away_while_less_than_half_of_the_queue_is_full(slots: int) -> None:
    room, chance = room_of(2, "exponential", seed=1, slots=slots)
    room.obey = lambda told: None if chance.random() < 0.5 else told
    let_arrive(room, chance, 2.0, 0, PERIOD)
    room.run()
    assert len(room.refusals) > 20
    assert all(2 * refusal.waiting >= slots for refusal in room.refusals)


def test_a_newcomer_does_not_get_the_slot_that_is_kept(start: Start) -> None:
    harness = start([1], max_requests=2)
    harness.submit(max_tokens=2)
    harness.tick()
    for _ in range(2):
        harness.submit()
    with pytest.raises(QueueFullError) as refusal:
        harness.submit()
    while len(harness.scheduler.queue) == 2:
        harness.step()
    with pytest.raises(QueueFullError):
        harness.submit()
    harness.clock.advance(refusal.value.retry_after)
    harness.submit()
    harness.finish()


def test_whoever_was_turned_out_is_promised_a_slot_as_well(start: Start) -> None:
    harness = start([1], max_requests=2, shed=True)
    harness.submit(1, max_tokens=2)
    harness.tick()
    turned_out, _ = harness.submit(5), harness.submit(2)
    harness.submit(1)
    error = error_of(turned_out)
    assert isinstance(error, RequestShedError)
    while len(harness.scheduler.queue) == 2:
        harness.step()
    with pytest.raises(QueueFullError):
        harness.submit(5)
    harness.clock.advance(error.retry_after)
    harness.submit(5)
    harness.finish()

"""Outputs that get longer than was predicted: rows that run short of cells."""

from __future__ import annotations

import pytest

from llamalane.ids import Level, RequestId
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.request import BLOCK, Request, RequestState
from llamalane.streams import Parking
from tests.scheduler.harness import Harness, Start
from tests.scheduler.scripted_lane import spoken

CELLS = 256
SEEN = 40


def expect(harness: Harness, length: int, levels: tuple[int, ...] = LEVELS) -> None:
    """Let outputs be predicted to get that long."""
    for level in levels:
        for _ in range(SEEN):
            harness.growth.observe(Level(level), length)


def run_long(harness: Harness, *levels: int, max_tokens: int = 200) -> list[Request]:
    """Let outputs begin together that get far longer than predicted."""
    expect(harness, 4)
    requests = [harness.submit(level, prompt=f"prompt {level} ", max_tokens=max_tokens) for level in levels]
    harness.tick()
    assert all(request.state is RequestState.RUNNING for request in requests), "they should fit, as predicted"
    return requests


def in_order_of_parking(harness: Harness, requests: list[Request]) -> list[int]:
    """Return the requests as they were parked for the first time."""
    ids = [request.id for request in requests]
    parked = dict.fromkeys(event.request for event in harness.events if event.kind is EventKind.PARKED)
    return [ids.index(RequestId(request)) for request in parked]


@pytest.mark.parametrize("park", [None, *Parking])
def test_the_oldest_goes_on_step_by_step_and_the_others_get_to_their_ends(start: Start, park: Parking | None) -> None:
    harness = start([4], limit=CELLS, cells=CELLS, park=park)
    requests = run_long(harness, 3, 3, 3, 3)
    oldest = requests[0]
    while oldest.state is not RequestState.DONE:
        before = len(oldest.generated)
        harness.step()
        assert len(oldest.generated) == before + 1
    assert oldest.parks == 0
    assert in_order_of_parking(harness, requests) == [3, 2, 1]
    harness.finish()
    assert sum(harness.scheduler.counters.parks.values()) <= 2 * len(requests), "they take turns for ever"


def test_the_least_urgent_yields_first_and_among_equals_the_youngest(start: Start) -> None:
    harness = start([4], limit=CELLS, cells=CELLS)
    requests = run_long(harness, 5, 2, 4, 2)
    harness.finish()
    assert in_order_of_parking(harness, requests) == [0, 2, 3]
    assert requests[1].parks == 0


def test_those_that_yield_do_not_come_back_before_there_is_room(start: Start) -> None:
    """Once an output has got longer than all that were seen, it is thought to go on for long."""
    harness = start([2], limit=CELLS, cells=CELLS)
    first, second = run_long(harness, 3, 3)
    while not second.parks:
        harness.step()
    while first.state is not RequestState.DONE:
        assert second.state is RequestState.WAITING
        harness.step()
    harness.finish()
    assert second.parks == 1


def test_a_request_may_fill_the_whole_region(start: Start) -> None:
    harness = start([4], limit=CELLS, cells=CELLS)
    alone = harness.submit(prompt="p" * 56, max_tokens=200)
    harness.tick()
    assert alone.lease is not None
    assert alone.lease.cells == 56 + BLOCK, "it begins with a little"
    harness.finish()
    assert alone.length == CELLS
    assert not harness.scheduler.counters.parks


def test_what_finished_requests_have_left_is_given_up_for_rows_that_grow(start: Start) -> None:
    harness = start([2], limit=CELLS, cells=CELLS)
    for letter in "abc":
        harness.submit(prompt=letter * 60, max_tokens=4)
        harness.run()
    kept = harness.pool.lanes[0].region.statistics().kept
    assert kept == 3 * 63
    harness.submit(prompt="long", max_tokens=CELLS - 4)
    harness.finish()
    assert not harness.scheduler.counters.parks


def test_paused_requests_lose_their_cells_before_anybody_who_runs(start: Start) -> None:
    harness = start([2], limit=CELLS, cells=CELLS)
    expect(harness, 4)
    growing = harness.submit(4, prompt="g" * 80, max_tokens=170)
    paused = harness.submit(5, prompt="p" * 80, max_tokens=20)
    harness.tick()
    harness.step(3)
    urgent = harness.submit(1, prompt="u", max_tokens=140)
    harness.tick()
    harness.step()
    assert paused.lease is not None
    assert paused.lease.paused
    while paused.lease is not None:
        assert paused.state is RequestState.WAITING
        harness.step()
    assert [growing.parks, urgent.parks] == [0, 0]
    harness.finish()


def test_nobody_yields_while_paused_cells_are_about_to_come_free(start: Start) -> None:
    """The lane has been told to take one off, and has not confirmed it yet."""
    harness = start([3], limit=CELLS, cells=CELLS)
    expect(harness, 4)
    growing = harness.submit(3, prompt="g" * 40, max_tokens=100)
    other = harness.submit(4, prompt="o" * 70, max_tokens=BLOCK)
    batch = harness.submit(5, prompt="b" * 46, max_tokens=BLOCK)
    harness.tick()
    harness.step(BLOCK // 2)
    urgent = harness.submit(1, prompt="u", max_tokens=3)
    harness.tick()
    assert batch.state is RequestState.PARKING
    assert harness.pool.lanes[0].region.room == 0
    harness.lane.step(begun=True)
    harness.tick()
    assert growing.runs_short
    assert [one.state for one in (growing, other, urgent)] == [RequestState.RUNNING] * 3
    harness.step()
    assert not growing.runs_short
    harness.finish()
    assert [growing.parks, other.parks, urgent.parks] == [0, 0, 0]


def test_the_text_is_right_though_the_lane_stops_at_its_last_cell(start: Start) -> None:
    """The loop hears of the steps so late that the row has filled all its cells."""
    harness = start([1], limit=CELLS, cells=CELLS)
    (request,) = run_long(harness, 3)
    for _ in range(2 * BLOCK):
        harness.lane.step()
    assert not harness.lane.rows[request.id].ready
    harness.tick()
    harness.step()
    assert request.generated
    harness.finish()
    assert request.delivery.take_nowait() == spoken("prompt 3 ", 200)

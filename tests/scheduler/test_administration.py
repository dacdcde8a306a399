"""Requests that get another priority, and lanes that are paused, while everything runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import RequestCancelledError
from llamalane.ids import Level, RequestId
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.gang import Gang
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.result import Result
from llamalane.streams import Parking
from tests.scheduler.harness import Harness, Start, error_of


def running_on(harness: Harness, lane: str) -> int:
    return len(harness.scheduler.ledgers[lane].running)


def pause(harness: Harness, lane: str) -> None:
    harness.scheduler.pause_lane(harness.pool.lane(lane))


def resume(harness: Harness, lane: str) -> None:
    harness.scheduler.resume_lane(harness.pool.lane(lane))


def state_of(request: Request) -> RequestState:
    return request.state


def started(harness: Harness, among: list[Request]) -> list[Request]:
    order = [event.request for event in harness.events if event.kind is EventKind.ADMITTED]
    return sorted(among, key=lambda request: order.index(request.id))


def test_a_waiting_request_that_gets_a_better_level_goes_first(start: Start) -> None:
    harness = start([1])
    harness.submit(3)
    harness.tick()
    waiting = [harness.submit(level) for level in (3, 4, 5)]
    harness.scheduler.set_level(waiting[2], Level(2))
    harness.finish()
    assert started(harness, waiting) == [waiting[2], waiting[0], waiting[1]]


def test_a_waiting_request_that_gets_a_worse_level_goes_last(start: Start) -> None:
    harness = start([1])
    harness.submit(3)
    harness.tick()
    waiting = [harness.submit(3) for _ in range(3)]
    harness.scheduler.set_level(waiting[0], Level(4))
    harness.finish()
    assert started(harness, waiting) == [waiting[1], waiting[2], waiting[0]]


def test_waiting_so_far_counts_at_the_new_level(start: Start) -> None:
    harness = start([1])
    harness.submit(3, max_tokens=40)
    harness.tick()
    early = harness.submit(5)
    harness.clock.advance(100.0)
    late = harness.submit(4)
    harness.scheduler.set_level(early, Level(4))
    assert early.key < late.key
    harness.finish()
    assert started(harness, [late, early]) == [early, late]


def test_going_back_to_the_old_level_changes_nothing(start: Start) -> None:
    harness = start([1])
    harness.submit(3)
    harness.tick()
    waiting = [harness.submit(4) for _ in range(3)]
    harness.scheduler.set_level(waiting[1], Level(1))
    harness.scheduler.set_level(waiting[1], Level(4))
    harness.finish()
    assert started(harness, waiting) == waiting


def test_a_request_made_urgent_displaces_a_running_one(start: Start) -> None:
    harness = start([1], limit=128, max_parks=3)
    batch = harness.submit(5, max_tokens=60)
    harness.tick()
    harness.step(2)
    equal = harness.submit(5)
    harness.tick()
    assert state_of(equal) is RequestState.WAITING
    harness.scheduler.set_level(equal, Level(1))
    harness.tick()
    harness.step()
    assert state_of(equal) is RequestState.RUNNING
    assert batch.parks == 1
    harness.finish()


def test_a_running_request_made_less_urgent_is_displaced_by_whom_it_kept_waiting(start: Start) -> None:
    harness = start([1], limit=128)
    first = harness.submit(2, max_tokens=60)
    harness.tick()
    harness.step(2)
    second = harness.submit(2)
    harness.tick()
    harness.scheduler.set_level(first, Level(5))
    harness.tick()
    harness.step()
    assert state_of(second) is RequestState.RUNNING
    assert first.parks == 1
    harness.finish()


def test_a_lane_is_told_of_a_running_rows_level(start: Start) -> None:
    harness = start([2])
    request = harness.submit(5, max_tokens=20)
    harness.tick()
    harness.step(2)
    harness.scheduler.set_level(request, Level(1))
    harness.tick()
    harness.step()
    row = harness.lane.rows[request.id]
    assert (row.join.level, row.join.urgency) == (1, (*request.key, request.order))
    assert harness.scheduler.running == {5: 0, 1: 1}
    harness.finish()


@pytest.mark.parametrize("how", [Parking.PAUSE, Parking.SWAP])
def test_a_request_that_gives_way_can_get_another_level_too(start: Start, how: Parking) -> None:
    harness = start([1], limit=128, park=how)
    batch = harness.submit(5, max_tokens=40)
    harness.tick()
    harness.step(2)
    urgent = harness.submit(1, max_tokens=40)
    harness.tick()
    assert state_of(batch) is RequestState.PARKING
    harness.scheduler.set_level(batch, Level(2))
    harness.check_books()
    harness.step()
    assert state_of(batch) is RequestState.WAITING
    harness.scheduler.set_level(batch, Level(1))
    assert state_of(urgent) is RequestState.RUNNING
    harness.finish()


def test_choices_that_start_together_get_the_same_level(start: Start) -> None:
    harness = start([2])
    harness.submit(3)
    harness.tick()
    gang = Gang[Request]()
    choices = [harness.submit(5, gang=gang) for _ in range(2)]
    harness.scheduler.set_level(choices[1], Level(1))
    assert [choice.level for choice in choices] == [1, 1]
    harness.finish()


def test_a_request_is_found_until_it_has_ended(start: Start) -> None:
    harness = start([1])
    running, waiting = harness.submit(3, max_tokens=20), harness.submit(3)
    harness.tick()
    harness.step()
    for request in (running, waiting):
        assert harness.scheduler.find(request.id) is request
        harness.scheduler.cancel(request)
        with pytest.raises(KeyError):
            harness.scheduler.find(request.id)
    with pytest.raises(KeyError):
        harness.scheduler.find(RequestId("nobody"))
    harness.run()
    assert isinstance(error_of(running), RequestCancelledError)


def test_a_paused_lane_finishes_what_runs_and_takes_nothing_new(start: Start) -> None:
    harness = start([2, 2])
    requests = [harness.submit(3, max_tokens=10) for _ in range(8)]
    harness.tick()
    assert running_on(harness, "lane-0") == running_on(harness, "lane-1") == 2
    pause(harness, "lane-0")
    while running_on(harness, "lane-0"):
        harness.step()
    assert running_on(harness, "lane-1") == 2
    harness.run()
    first = [request for request in requests if request.lane == "lane-0"]
    assert len(first) == 2
    assert harness.scheduler.counters.finished == 8
    resume(harness, "lane-0")
    harness.submit(3)
    harness.finish()


def test_with_every_lane_paused_requests_wait_until_one_is_resumed(start: Start) -> None:
    harness = start([2])
    pause(harness, "lane-0")
    request = harness.submit(1)
    harness.step(5)
    assert state_of(request) is RequestState.WAITING
    assert harness.scheduler.explain(request.id).reason == "every lane that has a context is paused"
    resume(harness, "lane-0")
    harness.finish()


def test_nobody_is_displaced_on_a_paused_lane(start: Start) -> None:
    harness = start([1, 1], limit=128)
    batch = [harness.submit(5, max_tokens=60) for _ in range(2)]
    harness.tick()
    harness.step(2)
    pause(harness, "lane-0")
    urgent = [harness.submit(1, max_tokens=60) for _ in range(2)]
    harness.tick()
    harness.step()
    assert [request.parks for request in batch if request.lane == "lane-0"] == [0]
    assert [request.lane for request in urgent if state_of(request) is RequestState.RUNNING] == ["lane-1"]
    resume(harness, "lane-0")
    harness.finish()


def test_a_parked_request_goes_on_elsewhere_when_its_lane_is_paused(start: Start) -> None:
    harness = start([1, 1], limit=128)
    batch = [harness.submit(5, max_tokens=60) for _ in range(2)]
    harness.tick()
    harness.step(2)
    urgent = harness.submit(1, max_tokens=10)
    harness.tick()
    harness.step()
    parked = next(request for request in batch if request.parks)
    pause(harness, urgent.lane)
    harness.run()
    assert parked.lane != urgent.lane
    resume(harness, urgent.lane)
    harness.finish()


def test_a_paused_lane_that_fails_and_comes_back_is_still_paused(start: Start) -> None:
    harness = start([1])
    request = harness.submit(3, max_tokens=30)
    harness.tick()
    harness.step(2)
    pause(harness, "lane-0")
    harness.lane.fail()
    harness.tick()
    harness.lane.reopen()
    harness.tick()
    assert state_of(request) is RequestState.WAITING
    resume(harness, "lane-0")
    harness.finish()


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "step", "step", "pause", "resume", "rank", "rank", "cancel", "fail"]),
        st.integers(0, 20),
        st.sampled_from([1, 2, 3, 4, 5]),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_whatever_is_asked_for_nothing_is_lost(operations: list[tuple[str, int, int]]) -> None:
    harness = Harness([2, 1], limit=64, cells=256, share=3, max_parks=2)
    for what, number, level in operations:
        lane = f"lane-{number % 2}"
        there = [request for request in harness.requests if harness.is_there(request)]
        if what == "submit":
            harness.submit(level, prompt="p" * (1 + number), max_tokens=1 + number)
        elif what == "pause":
            pause(harness, lane)
        elif what == "resume":
            resume(harness, lane)
        elif what == "fail" and harness.lanes[lane].rows:
            harness.lanes[lane].fail()
            harness.tick()
            harness.lanes[lane].reopen()
        elif what in ("rank", "cancel") and there:
            try:
                request = harness.scheduler.find(there[number % len(there)].id)
            except KeyError:
                continue
            if what == "rank":
                harness.scheduler.set_level(request, Level(level))
            else:
                harness.scheduler.cancel(request)
        elif what == "step":
            harness.step()
        harness.tick()
    for lane in harness.lanes:
        resume(harness, lane)
    harness.run()
    harness.check_conserved()
    for request in harness.requests:
        outcome = request.delivery.outcome
        assert outcome is not None
        if isinstance(outcome, Result):
            assert outcome.text == harness.alone(request)
    harness.close()

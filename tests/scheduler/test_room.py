"""Urgent requests that find no room: who gives way to them, and who does not."""

from __future__ import annotations

import pytest

from llamalane.scheduler.displacement import PROGRESS
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.request import Request, RequestState
from llamalane.streams import Parking
from tests.scheduler.harness import Harness, Start, result_of

LIMIT = 256


def occupy(harness: Harness, *levels: int, max_tokens: int = 40) -> list[Request]:
    """Let requests of these levels run until each has a few tokens; older ones stand before younger ones."""
    requests = [harness.submit(level, prompt=f"prompt {level} ", max_tokens=max_tokens) for level in levels]
    harness.tick()
    harness.step(3)
    assert all(request.state is RequestState.RUNNING and request.generated for request in requests)
    return requests


def parked(requests: list[Request]) -> list[int]:
    """Which of them had to give way."""
    return [number for number, request in enumerate(requests) if request.parks or request.state is RequestState.PARKING]


def test_an_urgent_request_starts_at_the_next_step_though_all_places_are_busy(start: Start) -> None:
    harness = start([4], limit=LIMIT)
    batch = occupy(harness, 5, 5, 5, 5)
    urgent = harness.submit(1)
    harness.tick()
    harness.step()
    assert urgent.id in harness.lane.steps[-1].started
    assert parked(batch) == [3]
    harness.finish()
    assert harness.kinds(batch[3]) == [
        EventKind.ACCEPTED,
        EventKind.ADMITTED,
        EventKind.STARTED,
        EventKind.PARKED,
        EventKind.ADMITTED,
        EventKind.STARTED,
        EventKind.ENDED,
    ]
    assert harness.scheduler.counters.admitted == 5, "to go on is not to be admitted again"


@pytest.mark.parametrize(
    ("running", "level", "victims"),
    [
        ((5, 4, 3), 1, [0]),
        ((3, 5, 4), 2, [1]),
        ((5, 5, 3), 1, [1]),
        ((2, 2, 2), 1, [2]),
        ((1, 2, 3), 2, [2]),
        ((4, 4, 5), 4, [2]),
        ((1, 1, 1), 1, []),
        ((5, 5, 5), 5, []),
        ((3, 3, 3), 4, []),
        ((1, 2, 3), 3, []),
    ],
)
def test_the_least_urgent_and_youngest_gives_way_and_never_to_an_equal(
    start: Start, running: tuple[int, ...], level: int, victims: list[int]
) -> None:
    harness = start([3], limit=LIMIT)
    requests = occupy(harness, *running)
    arrived = harness.submit(level)
    harness.tick()
    assert parked(requests) == victims
    assert arrived.state is (RequestState.RUNNING if victims else RequestState.WAITING)
    harness.finish()


def test_among_equals_the_one_that_loses_least_gives_way(start: Start) -> None:
    harness = start([3], limit=LIMIT, park=Parking.RECOMPUTE)
    batch = [harness.submit(5, prompt=prompt, max_tokens=40) for prompt in ("a" * 60, "b" * 20, "c" * 90)]
    harness.tick()
    harness.step(4)
    harness.submit(1)
    harness.tick()
    assert parked(batch) == [1], "it has the fewest tokens to be computed again"
    harness.submit(1)
    harness.tick()
    assert parked(batch) == [0, 1]
    harness.finish()


def test_several_urgent_requests_displace_several(start: Start) -> None:
    harness = start([4], limit=LIMIT)
    requests = occupy(harness, 5, 3, 4, 5)
    urgent = [harness.submit(1) for _ in range(3)]
    harness.tick()
    harness.step()
    assert set(harness.lane.steps[-1].started) == {request.id for request in urgent}
    assert parked(requests) == [0, 2, 3]
    harness.finish()


def test_an_aged_request_displaces_nobody(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    (first,) = occupy(harness, 1, max_tokens=5)
    old = harness.submit(5)
    younger = harness.submit(4, max_tokens=40)
    while younger.state is not RequestState.RUNNING:
        harness.step()
    assert first.state is RequestState.DONE
    harness.clock.advance(1000)  # the old one has long been as urgent as level 3
    harness.step(3)
    assert old.state is RequestState.WAITING
    assert younger.state is RequestState.RUNNING
    harness.finish()
    assert not harness.scheduler.counters.parks


def test_age_does_not_save_a_running_request(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    requests = occupy(harness, 5)
    harness.clock.advance(1000)
    urgent = harness.submit(3)
    harness.tick()
    assert parked(requests) == [0]
    assert urgent.state is RequestState.RUNNING
    harness.finish()


def test_the_displaced_go_on_in_their_old_order(start: Start) -> None:
    harness = start([2], limit=LIMIT)
    requests = occupy(harness, 5, 5)
    urgent = [harness.submit(1, max_tokens=count) for count in (3, 9)]
    harness.tick()
    assert parked(requests) == [0, 1]
    harness.submit(5)
    while urgent[0].state is not RequestState.DONE:
        harness.step()
    assert [request.state for request in requests] == [RequestState.RUNNING, RequestState.WAITING]
    while urgent[1].state is not RequestState.DONE:
        harness.step()
    assert [request.state for request in requests] == [RequestState.RUNNING, RequestState.RUNNING]
    harness.finish()


def test_a_sheltered_request_is_never_displaced(start: Start) -> None:
    harness = start([1], limit=LIMIT, share=1)
    (sheltered,) = occupy(harness, 5)
    assert sheltered.sheltered
    urgent = harness.submit(1)
    while sheltered.state is not RequestState.DONE:
        harness.step()
        assert not sheltered.parks
    harness.finish()
    assert urgent.state is RequestState.DONE


def be_displaced(harness: Harness, batch: Request, times: int) -> None:
    """Let urgent requests come one after the other as soon as `batch` runs."""
    for _ in range(times):
        urgent = harness.submit(1, max_tokens=2)
        harness.tick()
        while urgent.state is not RequestState.DONE or batch.state is not RequestState.RUNNING:
            harness.step()


def test_nobody_is_displaced_too_often_in_a_row_but_again_after_some_progress(start: Start) -> None:
    harness = start([1], limit=LIMIT, max_parks=2)
    batch = harness.submit(5, prompt="batch", max_tokens=PROGRESS + 30)
    harness.tick()
    harness.step(3)
    be_displaced(harness, batch, times=2)
    assert batch.parks == 2
    urgent = harness.submit(1, max_tokens=2)
    since = len(batch.generated)
    while urgent.state is RequestState.WAITING:
        harness.step()
        assert batch.parks == 2 or len(batch.generated) >= since + PROGRESS
    assert len(batch.generated) < batch.max_tokens
    harness.finish()
    assert batch.parks == 3


def test_without_parks_an_urgent_request_waits_for_a_place(start: Start) -> None:
    harness = start([2], limit=LIMIT, max_parks=0)
    requests = occupy(harness, 5, 5)
    urgent = harness.submit(1)
    while all(request.state is RequestState.RUNNING for request in requests):
        assert urgent.state is RequestState.WAITING
        harness.step()
    harness.finish()
    assert not harness.scheduler.counters.parks


def test_cells_are_made_free_where_a_place_is(start: Start) -> None:
    harness = start([4], limit=LIMIT, cells=256)
    batch = [harness.submit(5, prompt=letter * 80, max_tokens=40) for letter in "ab"]
    harness.tick()
    harness.step(3)
    urgent = harness.submit(1, prompt="u" * 80)
    harness.tick()
    assert parked(batch) == [1]
    harness.step()
    assert urgent.id in harness.lane.steps[-1].started
    harness.finish()
    assert not harness.scheduler.counters.parks["pause"], "who stays on the lane makes no room there"


def test_nobody_is_parked_when_that_makes_no_room(start: Start) -> None:
    harness = start([2], limit=LIMIT, cells=256)
    large = harness.submit(1, prompt="l" * 150, max_tokens=20)
    small = harness.submit(5, prompt="s" * 20, max_tokens=20)
    harness.tick()
    harness.step(3)
    urgent = harness.submit(2, prompt="u" * 80)
    harness.step()
    assert not harness.scheduler.counters.parks
    assert [request.state for request in (large, small)] == [RequestState.RUNNING] * 2
    harness.finish()
    assert urgent.state is RequestState.DONE


def test_room_is_made_on_another_lane_when_the_first_victim_has_too_little(start: Start) -> None:
    harness = start([2, 1], limit=LIMIT, cells=256)
    large, other, small = (
        harness.submit(level, prompt=letter * count, max_tokens=40)
        for level, letter, count in ((1, "l", 150), (4, "o", 100), (5, "s", 20))
    )
    harness.tick()
    harness.step(3)
    assert [request.lane for request in (large, other, small)] == ["lane-0", "lane-1", "lane-0"]
    urgent = harness.submit(2, prompt="u" * 150)
    harness.step()
    assert urgent.state is RequestState.RUNNING
    assert parked([large, other, small]) == [1]
    harness.finish()


def test_a_place_kept_for_better_levels_stays_free_when_somebody_gives_way(start: Start) -> None:
    harness = start([2], limit=LIMIT, reserve={1: 1})
    requests = occupy(harness, 5)
    normal = harness.submit(3, max_tokens=20)
    harness.tick()
    assert normal.state is RequestState.RUNNING
    assert parked(requests) == [0]
    assert harness.pool.free == 1
    harness.step(3)
    assert harness.pool.free == 1
    harness.finish()


def test_urgent_requests_on_two_lanes_displace_on_both(start: Start) -> None:
    harness = start([2, 2], limit=LIMIT)
    requests = occupy(harness, 5, 4, 5, 4)
    urgent = [harness.submit(1) for _ in range(3)]
    harness.tick()
    harness.step()
    assert all(request.state is RequestState.RUNNING for request in urgent)
    assert len(parked(requests)) == 3
    assert {request.level for request in requests if request.state is RequestState.RUNNING} == {4}
    harness.finish()


def test_cells_that_paused_requests_share_can_be_taken_from_all_of_them(start: Start) -> None:
    """None of them owns these alone, and yet a large request can have them when nobody runs."""
    harness = start([2], limit=256, cells=256, park=Parking.PAUSE, share=2)
    common = "so much do they have in common that nothing is left for anybody else " * 2
    paused = [harness.submit(5, prompt=common + letter, max_tokens=100) for letter in "ab"]
    harness.tick()
    harness.step(3)
    urgent = [harness.submit(1, prompt=letter, max_tokens=2) for letter in "uv"]
    harness.tick()
    large = harness.submit(1, prompt="l" * 250, max_tokens=5)
    harness.run()
    for request in [*paused, *urgent, large]:
        assert result_of(request).text == harness.alone(request)
    harness.check_conserved()

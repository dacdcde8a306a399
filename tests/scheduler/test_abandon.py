"""Steps that are broken off: for whom, and for whom not."""

from __future__ import annotations

import pytest

from llamalane.scheduler.request import RequestState
from tests.scheduler.harness import Harness, Start
from tests.scheduler.scripted_lane import spoken

LIMIT = 256
STEP = 0.25
"""Seconds that each step takes."""
ABORT_AFTER = 0.125


def slow(rows: int, prompt_tokens: int) -> float:
    return STEP


def begin(start: Start, *levels: int, places: int = 4, abort_after: float | None = ABORT_AFTER) -> Harness:
    """Let requests run until their lane's speed is known; the next step has just begun."""
    harness = start([places], limit=LIMIT, step_seconds=slow, abort_after=abort_after)
    for level in levels:
        harness.submit(level, prompt=f"prompt {level} ", max_tokens=60)
    harness.tick()
    harness.step(4)
    return harness


def abandoned(harness: Harness) -> int:
    """How many steps the lane broke off, once it has taken the newest plan."""
    harness.step()
    assert harness.scheduler.ledgers["lane-0"].abandoned_steps == harness.lane.abandoned
    return harness.lane.abandoned


def test_a_step_is_abandoned_for_a_more_urgent_request(start: Start) -> None:
    harness = begin(start, 5, 4)
    before = [len(request.generated) for request in harness.requests]
    urgent = harness.submit(1)
    harness.tick()
    assert abandoned(harness) == 1
    assert urgent.id in harness.lane.steps[-1].started
    harness.step()
    assert all(len(request.generated) > count for request, count in zip(harness.requests, before, strict=False))
    harness.finish()


@pytest.mark.parametrize(
    ("running", "level", "abandons"),
    [
        ((5,), 4, True),
        ((2, 3), 1, True),
        ((5,), 5, False),
        ((1,), 1, False),
        ((3,), 5, False),
        ((5, 1), 1, False),
        ((5, 2), 3, False),
    ],
)
def test_only_if_it_is_more_urgent_than_all_who_would_lose_the_step(
    start: Start, running: tuple[int, ...], level: int, abandons: bool
) -> None:
    harness = begin(start, *running)
    harness.submit(level)
    harness.tick()
    assert abandoned(harness) == abandons
    harness.finish()


def test_not_for_one_that_has_to_wait_for_a_place(start: Start) -> None:
    harness = begin(start, 2, places=1)
    harness.submit(2)
    harness.tick()
    assert abandoned(harness) == 0
    harness.finish()


def test_for_one_that_takes_the_place_of_another(start: Start) -> None:
    harness = begin(start, 5, places=1)
    (batch,) = harness.requests
    urgent = harness.submit(1)
    harness.tick()
    assert batch.state is RequestState.PARKING
    assert abandoned(harness) == 1
    assert urgent.id in harness.lane.steps[-1].started
    harness.finish()
    assert batch.delivery.take_nowait() == spoken("prompt 5 ", 60)


@pytest.mark.parametrize(
    ("elapsed", "abandons"), [(0.0, True), (0.0625, True), (0.125, False), (0.1875, False), (9.0, False)]
)
def test_only_if_its_end_is_further_away_than_the_bound(start: Start, elapsed: float, abandons: bool) -> None:
    harness = begin(start, 5)
    harness.clock.advance(elapsed)
    harness.submit(1)
    harness.tick()
    assert abandoned(harness) == abandons
    harness.finish()


def test_a_prompt_under_way_makes_the_step_longer(start: Start) -> None:
    harness = start(
        [2],
        limit=LIMIT,
        max_step_tokens=32,
        step_seconds=lambda rows, prompt_tokens: 0.0625 + 0.0078125 * prompt_tokens,
        abort_after=ABORT_AFTER,
    )
    for prompt, abandons in (("p", False), ("p" * 100, True)):
        before = harness.lane.abandoned
        batch = harness.submit(5, prompt=prompt, max_tokens=30)
        harness.step(3)
        harness.submit(1, max_tokens=2)
        harness.tick()
        harness.step()
        assert harness.lane.abandoned - before == abandons
        harness.run()
        assert batch.state is RequestState.DONE
    harness.finish()


def test_not_before_the_lane_s_speed_is_known(start: Start) -> None:
    harness = start([2], limit=LIMIT, step_seconds=slow, abort_after=ABORT_AFTER)
    harness.submit(5)
    harness.step()
    harness.submit(1)
    harness.tick()
    assert abandoned(harness) == 0
    harness.finish()


def test_never_without_a_bound(start: Start) -> None:
    harness = begin(start, 5, abort_after=None)
    harness.submit(1, max_tokens=2)
    harness.tick()
    assert abandoned(harness) == 0
    for request in harness.requests:
        harness.scheduler.cancel(request)
    harness.tick()
    assert abandoned(harness) == 0
    harness.finish()


def test_not_twice_for_rows_that_have_not_got_on_in_between(start: Start) -> None:
    harness = begin(start, 5)
    (batch,) = harness.requests
    before = len(batch.generated)
    for level, times in ((4, 1), (3, 1), (2, 2)):
        harness.submit(level, prompt=f"{level} prompt", max_tokens=1)  # whose prompt lets the other sit out a step
        harness.tick()
        assert abandoned(harness) == times
        assert (len(batch.generated) > before) == (level == 3)
        before = len(batch.generated)
    harness.finish()


def test_not_twice_for_one_that_was_parked_in_between(start: Start) -> None:
    harness = begin(start, 5, places=1)
    (batch,) = harness.requests
    first = harness.submit(3, max_tokens=2)
    harness.tick()
    assert abandoned(harness) == 1
    while batch.state is not RequestState.RUNNING:
        harness.step()
    assert first.state is RequestState.DONE
    harness.submit(1, max_tokens=2)
    harness.tick()
    assert abandoned(harness) == 1, "it has lost a step before, and got no token since"
    while batch.state is not RequestState.RUNNING:
        harness.step()
    harness.step()
    harness.submit(1, max_tokens=2)
    harness.tick()
    assert abandoned(harness) == 2
    harness.finish()


def test_a_step_is_abandoned_when_everybody_has_left(start: Start) -> None:
    harness = begin(start, 5, 5)
    for request in harness.requests:
        harness.scheduler.cancel(request)
    harness.tick()
    assert abandoned(harness) == 1
    assert all(request.state is RequestState.DONE for request in harness.requests)
    harness.finish()


def test_a_step_is_abandoned_when_the_last_one_leaves(start: Start) -> None:
    harness = begin(start, 1, 5)
    first, last = harness.requests
    harness.scheduler.cancel(first)
    harness.tick()
    assert harness.lane.abandoned == 0
    harness.scheduler.cancel(last)
    harness.tick()
    assert abandoned(harness) == 1
    harness.finish()


def test_a_step_is_not_abandoned_when_somebody_stays(start: Start) -> None:
    harness = begin(start, 5, 5)
    harness.scheduler.cancel(harness.requests[0])
    harness.tick()
    assert abandoned(harness) == 0
    harness.finish()


def test_who_left_is_not_remembered_for_having_lost_a_step(start: Start) -> None:
    harness = begin(start, 5)
    for _ in range(100):
        for request in harness.requests:
            harness.scheduler.cancel(request)
        harness.submit(5, prompt="again", max_tokens=60)
        harness.step(2)
        assert harness.requests[-1].generated
    assert harness.lane.abandoned > 90
    assert len(harness.scheduler.ledgers["lane-0"]._interrupted) < 10
    harness.finish()

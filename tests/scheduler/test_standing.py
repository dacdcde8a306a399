"""Where requests stand, for clients who are told again and again."""

from __future__ import annotations

import pytest

from llamalane.scheduler import RequestState, Standing
from llamalane.scheduler.request import Request
from tests.scheduler.harness import Harness, Start

LIMIT = 256


def stands(harness: Harness, request: Request) -> Standing:
    return harness.scheduler.standing(request.id)


def position(harness: Harness, request: Request) -> tuple[int | None, int]:
    told = stands(harness, request)
    return told.position, told.waiting


def test_who_waits_is_told_its_position_in_the_order_of_turns(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    harness.submit(1, max_tokens=60)
    harness.tick()
    waiting = [harness.submit(level, prompt="abc") for level in (3, 5, 2)]
    assert [position(harness, request) for request in waiting] == [(2, 3), (3, 3), (1, 3)]
    assert all(stands(harness, request).state is RequestState.WAITING for request in waiting)
    assert not any(stands(harness, request).computing for request in waiting)
    harness.finish()


def test_a_newcomer_is_found_at_once_and_the_others_soon_hear_of_it(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    harness.submit(1, max_tokens=60)
    harness.tick()
    early = harness.submit(3)
    assert position(harness, early) == (1, 1)
    late = harness.submit(2)
    assert position(harness, early) == (1, 1), "the order is used again for a moment"
    assert position(harness, late) == (1, 2)
    assert position(harness, early) == (2, 2)
    harness.scheduler.cancel(late)
    harness.clock.advance(0.6)
    assert position(harness, early) == (1, 1)
    harness.finish()


def test_a_prompt_is_told_chunk_by_chunk(start: Start) -> None:
    harness = start([1], limit=LIMIT, max_step_tokens=8)
    request = harness.submit(prompt="x" * 20, max_tokens=4)
    harness.tick()
    told = []
    for _ in range(4):
        now = stands(harness, request)
        told.append((now.computing, now.computed, now.tokens, now.generated))
        harness.step()
    assert told == [(True, 0, 20, 0), (True, 8, 20, 0), (True, 16, 20, 0), (False, 20, 21, 1)]
    assert position(harness, request) == (None, 0)
    harness.finish()


def test_what_a_lane_had_before_counts_as_computed(start: Start) -> None:
    harness = start([1], limit=LIMIT, max_step_tokens=8)
    harness.submit(prompt="x" * 20, max_tokens=2)
    harness.run()
    again = harness.submit(prompt="x" * 20 + "y" * 20, max_tokens=2)
    harness.tick()
    harness.step()
    assert stands(harness, again).computed == 20 + 8
    harness.finish()


def test_who_has_ended_stands_nowhere(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    request = harness.submit()
    harness.finish()
    with pytest.raises(KeyError):
        stands(harness, request)

"""Deadlines that cannot be met, or cannot be met any more."""

from __future__ import annotations

from typing import Any

import pytest

from llamalane.errors import DeadlineExceededError
from llamalane.scheduler.request import Request, RequestState
from tests.scheduler.harness import Harness, Start, error_of, result_of
from tests.scheduler.scripted_lane import spoken

LIMIT = 256
DECODE, TOKEN = 0.25, 0.125
"""Seconds that a step takes for its decode rows, and for each prompt token."""
PROMPT = "eight..."
"""Takes one second."""


def slow(rows: int, prompt_tokens: int) -> float:
    return (DECODE if rows else 0.0) + TOKEN * prompt_tokens


def waits(request: Request) -> bool:
    return request.state is RequestState.WAITING


def experienced(start: Start, **options: Any) -> Harness:
    """A harness with one place whose speed is known, at the moment 0."""
    harness = start([1], limit=LIMIT, step_seconds=slow, target_itl=10.0, **options)
    harness.submit(max_tokens=3, tenant="another")
    harness.run()
    return harness


needs = pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"ignore_eos": True}, 2.0),
        ({"ignore_eos": True, "stop": ["zz"]}, 1.0),
        ({}, 1.0),
    ],
    ids=["all its tokens", "at least one: a stop string may end it", "at least one: it may end by itself"],
)


@needs
def test_a_deadline_that_cannot_be_met_is_refused_at_once(
    start: Start, options: dict[str, Any], seconds: float
) -> None:
    harness = experienced(start)
    with pytest.raises(DeadlineExceededError):
        harness.submit(prompt=PROMPT, max_tokens=5, deadline=seconds, **options)
    assert harness.scheduler.counters.rejected == {"deadline": 1}
    request = harness.submit(prompt=PROMPT, max_tokens=5, deadline=seconds + TOKEN, **options)
    harness.finish()
    assert result_of(request)


@needs
def test_who_waits_is_dropped_as_soon_as_the_deadline_cannot_be_met(
    start: Start, options: dict[str, Any], seconds: float
) -> None:
    harness = experienced(start)
    harness.submit(1, max_tokens=100, tenant="another")
    harness.tick()
    request = harness.submit(prompt=PROMPT, max_tokens=5, deadline=10, **options)
    harness.clock.advance(10 - seconds - TOKEN)
    harness.tick()
    assert waits(request)
    harness.clock.advance(TOKEN)
    harness.tick()
    assert isinstance(error_of(request), DeadlineExceededError)
    assert harness.scheduler.counters.expired == 1
    harness.finish()


def test_who_may_end_earlier_starts_late_and_ends_in_time(start: Start) -> None:
    harness = experienced(start)
    busy = harness.submit(1, max_tokens=100, tenant="another")
    harness.tick()
    request = harness.submit(prompt=PROMPT, max_tokens=5, deadline=10, stop=[spoken(PROMPT, 2)])
    harness.clock.advance(8.5)
    harness.scheduler.cancel(busy)
    harness.tick()
    harness.step()
    assert request.state is RequestState.RUNNING
    harness.clock.advance(10 - 8.5 - TOKEN)
    harness.finish()
    assert result_of(request).text == ""


@pytest.mark.parametrize("park", [False, True])
def test_who_has_begun_is_ended_at_the_deadline_and_not_before(start: Start, park: bool) -> None:
    harness = experienced(start)
    request = harness.submit(5, prompt=PROMPT, max_tokens=100, deadline=100, ignore_eos=True)
    harness.tick()
    harness.step(3)
    if park:
        harness.submit(1, max_tokens=30)
        harness.tick()
        harness.step()
        assert waits(request)
    harness.clock.advance(100 - TOKEN)
    harness.tick()
    assert request.delivery.outcome is None
    harness.clock.advance(TOKEN)
    harness.tick()
    assert isinstance(error_of(request), DeadlineExceededError)
    harness.finish()


def test_before_a_lane_s_speed_is_known_only_the_deadline_counts(start: Start) -> None:
    harness = start([1], limit=LIMIT, step_seconds=slow)
    request = harness.submit(prompt="x" * 200, max_tokens=40, deadline=TOKEN, ignore_eos=True)
    assert waits(request)
    harness.clock.advance(TOKEN)
    harness.tick()
    assert isinstance(error_of(request), DeadlineExceededError)
    harness.check_conserved()


def test_what_is_kept_of_a_prompt_takes_no_time(start: Start) -> None:
    harness = experienced(start)
    first = harness.submit(prompt="x" * 80, max_tokens=3, tenant="me")
    harness.run()
    follow_up = "x" * 80 + result_of(first).text + "!"
    with pytest.raises(DeadlineExceededError):
        harness.submit(prompt=follow_up, deadline=5, tenant="you")
    request = harness.submit(prompt=follow_up, deadline=5, tenant="me")
    harness.finish()
    assert result_of(request).usage.cached_tokens == 82


def test_what_another_request_holds_of_a_prompt_takes_no_time(start: Start) -> None:
    harness = experienced(start)
    running = harness.submit(prompt="x" * 80, max_tokens=100, tenant="me")
    harness.tick()
    harness.step(3)
    with pytest.raises(DeadlineExceededError):
        harness.submit(prompt="x" * 80 + "!", deadline=5, tenant="you")
    request = harness.submit(prompt="x" * 80 + "!", deadline=5, tenant="me")
    harness.clock.advance(4)
    harness.tick()
    assert waits(request)
    harness.scheduler.cancel(running)
    harness.finish()
    assert result_of(request).usage.cached_tokens == 80


def test_who_waits_is_not_dropped_if_a_part_of_the_prompt_has_been_kept_meanwhile(start: Start) -> None:
    harness = experienced(start, max_parks=0)
    first = harness.submit(2, prompt="x" * 40, max_tokens=3, tenant="me")
    harness.tick()
    request = harness.submit(5, prompt="x" * 40 + "!", deadline=10, tenant="me")
    harness.submit(1, prompt="y", max_tokens=10, tenant="you")
    while first.state is not RequestState.DONE:
        harness.step()
    harness.clock.advance(8)
    harness.step()
    assert waits(request), "most of its prompt need not be computed"
    harness.finish()
    assert result_of(request).usage.cached_tokens == 40

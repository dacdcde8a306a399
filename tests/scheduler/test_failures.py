"""Lanes that lose their context, and the requests that ran on them."""

from __future__ import annotations

import pytest

from llamalane.errors import LaneDownError, RequestCancelledError, RequestFailedError
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.lane_news import MAX_RESTARTS
from llamalane.scheduler.ledger import UNPROTECTED
from llamalane.scheduler.request import Request, RequestState
from tests.scheduler.harness import Harness, Start, error_of, result_of
from tests.scheduler.scripted_lane import spoken


def fail_and_reopen(harness: Harness) -> None:
    """Let the first lane fail and come back."""
    harness.lane.fail()
    harness.tick()
    harness.lane.reopen()
    harness.tick()


def begin(harness: Harness, *prompts: str, max_tokens: int = 10) -> list[Request]:
    """Let requests run until each has got three tokens."""
    requests = [harness.submit(prompt=prompt, max_tokens=max_tokens) for prompt in prompts]
    harness.tick()
    while any(len(request.generated) < 3 for request in requests):
        harness.step()
    return requests


def test_requests_go_on_from_their_tokens(start: Start) -> None:
    harness = start([2])
    requests = begin(harness, "one", "two")
    fail_and_reopen(harness)
    harness.run()
    for request, prompt in zip(requests, ("one", "two"), strict=True):
        result = result_of(request)
        assert result.text == spoken(prompt, 10)
        assert request.delivery.take_nowait() == result.text, "text was lost or repeated"
        assert result.usage.completion_tokens == len(result.tokens) == 10
        assert result.timings.restarts == 1
    assert harness.scheduler.counters.restarts == 2
    assert harness.scheduler.counters.admitted == 2
    assert harness.scheduler.counters.completion_tokens == 20
    harness.check_conserved()


@pytest.mark.parametrize("steps", range(12))
def test_it_does_not_matter_when_a_lane_fails(start: Start, steps: int) -> None:
    harness = start([2], limit=256, max_step_tokens=32)
    text = spoken("stopped", 9)
    long = harness.submit(prompt="x" * 100, max_tokens=5)
    stopped = harness.submit(prompt="stopped", max_tokens=20, stop=[text[6:9]])
    harness.tick()
    harness.step(steps)
    harness.lane.step()  # and nobody hears of this one
    fail_and_reopen(harness)
    harness.run()
    assert result_of(long).text == spoken("x" * 100, 5)
    assert result_of(stopped).text == text[: text.index(text[6:9])]
    harness.check_conserved()


def test_a_lane_without_a_context_gets_nothing(start: Start) -> None:
    harness = start([2])
    (request,) = begin(harness, "one")
    harness.lane.fail()
    harness.tick()
    assert request.state is RequestState.WAITING
    assert harness.pool.free == 0
    harness.submit()
    harness.step(3)
    assert harness.pool.leased == 0
    harness.lane.reopen()
    harness.tick()
    assert harness.pool.leased == 2
    harness.run()
    harness.check_conserved()


def test_failing_again_before_coming_back_counts_places_once(start: Start) -> None:
    harness = start([2])
    begin(harness, "one")
    harness.lane.fail()
    harness.lane.fail()
    harness.tick()
    assert harness.pool.free == 0
    harness.lane.reopen()
    harness.tick()
    harness.run()
    harness.check_conserved()


def test_requests_take_their_old_place_in_the_order(start: Start) -> None:
    harness = start([1])
    (older,) = begin(harness, "older")
    younger = harness.submit(max_tokens=3)
    urgent = harness.submit(1, max_tokens=3)
    fail_and_reopen(harness)
    assert urgent.state is RequestState.RUNNING
    while harness.is_there(urgent):
        harness.step()
    assert older.state is RequestState.RUNNING
    assert younger.state is RequestState.WAITING
    harness.run()
    assert result_of(older).text == spoken("older", 10)
    harness.check_conserved()


def test_other_lanes_take_over(start: Start) -> None:
    harness = start([2, 2])
    requests = begin(harness, "one", "two")
    assert {request.lane for request in requests} == {"lane-0", "lane-1"}
    moved = next(request for request in requests if request.lane == "lane-0")
    harness.lane.fail()
    harness.tick()
    assert moved.lane == "lane-1"
    harness.run()
    assert [result_of(request).text for request in requests] == [spoken("one", 10), spoken("two", 10)]
    harness.lane.reopen()
    harness.tick()
    harness.check_conserved()


def test_no_cell_of_a_lost_context_is_taken_for_cached(start: Start) -> None:
    harness = start([1])
    harness.submit(prompt="hello", max_tokens=5)
    harness.run()
    fail_and_reopen(harness)
    follow_up = harness.submit(prompt="hello" + spoken("hello", 5), max_tokens=3)
    harness.run()
    assert result_of(follow_up).usage.cached_tokens == 0


def test_a_plan_made_for_a_lost_context_is_not_carried_out(start: Start) -> None:
    harness = start([2])
    begin(harness, "one")
    harness.submit(prompt="two", max_tokens=5)
    harness.tick()  # the plan with the second one lies in the mailbox
    harness.lane.fail()
    harness.lane.step()
    assert not harness.lane.rows
    harness.tick()
    harness.lane.reopen()
    harness.tick()
    harness.run()
    harness.check_conserved()


@pytest.mark.parametrize("heard", [True, False])
def test_a_lane_that_fails_while_a_request_is_leaving_frees_its_place(start: Start, heard: bool) -> None:
    harness = start([1])
    (request,) = begin(harness, "one")
    harness.scheduler.cancel(request)
    if heard:
        harness.tick()
    harness.lane.fail()
    harness.tick()
    assert request.state is RequestState.DONE
    assert isinstance(error_of(request), RequestCancelledError)
    harness.lane.reopen()
    harness.run()
    harness.check_conserved()


def test_a_lane_that_fails_after_it_has_finished_a_request_does_not_repeat_it(start: Start) -> None:
    harness = start([1])
    (request,) = begin(harness, "one")
    while harness.lane.rows:
        harness.lane.step()
    harness.lane.fail()
    harness.lane.reopen()
    harness.tick()
    assert result_of(request).text == spoken("one", 10)
    assert result_of(request).timings.restarts == 0
    harness.run()
    harness.check_conserved()


def test_a_request_is_given_up_after_three_failures_under_it(start: Start) -> None:
    harness = start([1])
    request = harness.submit(prompt="one", max_tokens=30)
    harness.tick()
    for _ in range(MAX_RESTARTS):
        harness.step(2)
        assert request.delivery.outcome is None
        fail_and_reopen(harness)
    assert isinstance(error_of(request), RequestFailedError)
    assert request.state is RequestState.DONE
    assert harness.kinds(request).count(EventKind.REQUEUED) == MAX_RESTARTS - 1
    assert harness.scheduler.counters.failed == 1
    other = harness.submit(prompt="two", max_tokens=4)
    harness.run()
    assert result_of(other).text == spoken("two", 4)
    harness.check_conserved()


def test_without_any_lane_left_everybody_hears_of_it(start: Start) -> None:
    harness = start([2, 2])
    running = [harness.submit(max_tokens=30) for _ in range(4)]
    harness.tick()
    waiting = [harness.submit() for _ in range(3)]
    first, second = harness.lanes.values()
    first.fail(down=True)
    harness.tick()
    assert not harness.scheduler.down
    assert all(request.delivery.outcome is None for request in [*running, *waiting])
    second.fail(down=True)
    harness.tick()
    assert harness.scheduler.down
    for request in [*running, *waiting]:
        assert isinstance(error_of(request), LaneDownError)
        assert request.state is RequestState.DONE
    assert harness.scheduler.idle
    with pytest.raises(LaneDownError):
        harness.submit()
    assert harness.pool.free == harness.pool.leased == 0


def test_a_lane_that_gives_up_tells_its_requests_that_it_is_down(start: Start) -> None:
    harness = start([1])
    request = harness.submit(max_tokens=30)
    harness.tick()
    for failure in range(1, 4):
        harness.lane.fail(down=failure == 3)
        if failure < 3:
            harness.lane.reopen()
        harness.tick()
    assert isinstance(error_of(request), LaneDownError)


def test_what_is_left_of_a_prompt_is_paced_after_a_restart_too(start: Start) -> None:
    """A request that has tokens from before is a prompt again until the new lane has computed them all."""
    harness = start([1], limit=512, target_itl=0.02)
    request = harness.submit(prompt="x" * 300, max_tokens=20)
    harness.tick()
    while len(request.generated) < 3:
        harness.step()
    fail_and_reopen(harness)
    before = len(harness.lane.steps)
    while len(request.generated) < 4:
        harness.step()
    chunks = [step.prefill_tokens for step in harness.lane.steps[before:]]
    assert sum(chunks) == 303
    assert max(chunks) <= 0.02 * UNPROTECTED / 0.001
    assert len(chunks) <= 6, "the lane's speed was forgotten"


def test_the_failure_is_told_to_whoever_follows_the_events(start: Start) -> None:
    harness = start([1])
    begin(harness, "one")
    fail_and_reopen(harness)
    harness.run()
    told = [event.kind for event in harness.events if event.lane == "lane-0" and not event.request]
    assert [kind for kind in told if kind is not EventKind.STEP] == [EventKind.LANE_FAILED, EventKind.LANE_READY]
    assert harness.scheduler.ledgers["lane-0"].failures == 1

"""Requests that end before they are finished: cancelled, too late, or at the end of everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llamalane.errors import (
    DeadlineExceededError,
    EngineClosedError,
    RequestCancelledError,
)
from llamalane.scheduler.delivery import Ending
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.result import Result
from llamalane.streams import Parking
from tests.scheduler.harness import Harness, Start, error_of, result_of
from tests.scheduler.scripted_lane import spoken

PROMPT = "x" * 100
"""Takes several steps, of 32 tokens each."""

Bring = Callable[[Harness, Request], None]


def to_waiting(harness: Harness, request: Request) -> None:
    """Leave it in the queue, behind one that runs."""


def to_planned(harness: Harness, request: Request) -> None:
    """The plan with it lies in the mailbox."""
    harness.tick()


def to_prefill(harness: Harness, request: Request) -> None:
    """Part of its prompt is computed."""
    harness.tick()
    harness.step()
    assert 0 < harness.lane.rows[request.id].computed < len(request.tokens)


def to_decoding(harness: Harness, request: Request) -> None:
    """It has got a few tokens."""
    harness.tick()
    while len(request.generated) < 3:
        harness.step()


def to_decoded_unheard(harness: Harness, request: Request) -> None:
    """Its lane has gone on, and the loop has not heard of it."""
    to_decoding(harness, request)
    for _ in range(3):
        harness.lane.step()


def to_ended_unheard(harness: Harness, request: Request) -> None:
    """Its lane has finished it, and the loop has not heard of it."""
    to_decoding(harness, request)
    while harness.lane.rows:
        harness.lane.step()


STATES = {
    RequestState.WAITING: to_waiting,
    "planned": to_planned,
    "prefill": to_prefill,
    "decoding": to_decoding,
    "decoded, unheard of": to_decoded_unheard,
    "ended, unheard of": to_ended_unheard,
}

in_every_state = pytest.mark.parametrize("bring", STATES.values(), ids=map(str, STATES))


def a_request(harness: Harness, bring: Bring, *, deadline: float | None = None) -> Request:
    """Submit a request to a harness with one place, and bring it to a state."""
    if bring is to_waiting:
        harness.submit(prompt="first", max_tokens=4)
        harness.tick()
    request = harness.submit(prompt=PROMPT, max_tokens=20, deadline=deadline)
    bring(harness, request)
    return request


@in_every_state
def test_a_cancelled_request_gives_back_its_place_once(start: Start, bring: Bring) -> None:
    harness = start([1], limit=256)
    request = a_request(harness, bring)
    harness.scheduler.cancel(request)
    assert isinstance(error_of(request), RequestCancelledError)
    harness.tick()
    harness.step()
    assert request.state is RequestState.DONE, "the place is not free after one step"
    harness.run()
    harness.check_conserved()
    assert harness.scheduler.counters.cancelled == 1
    assert harness.scheduler.counters.failed == 0


@in_every_state
def test_cancelling_again_changes_nothing(start: Start, bring: Bring) -> None:
    harness = start([1], limit=256)
    request = a_request(harness, bring)
    for _ in range(2):
        harness.scheduler.cancel(request)
    harness.tick()
    harness.scheduler.cancel(request)
    harness.run()
    outcome = request.delivery.outcome
    harness.scheduler.cancel(request)
    harness.tick()
    assert request.delivery.outcome is outcome
    assert harness.scheduler.counters.cancelled == 1
    harness.check_conserved()


@in_every_state
def test_the_next_request_on_that_place_is_not_disturbed(start: Start, bring: Bring) -> None:
    harness = start([1], limit=256)
    request = a_request(harness, bring)
    same_beginning = harness.submit(prompt=PROMPT + "!", max_tokens=5)
    harness.scheduler.cancel(request)
    harness.run()
    assert result_of(same_beginning).text == spoken(PROMPT + "!", 5)
    harness.check_conserved()


def test_cancelling_a_finished_request_changes_nothing(start: Start) -> None:
    harness = start()
    request = harness.submit(max_tokens=3)
    harness.run()
    harness.scheduler.cancel(request)
    harness.tick()
    assert isinstance(request.delivery.outcome, Result)
    assert harness.scheduler.counters.cancelled == 0
    harness.check_conserved()


def test_cancelling_after_a_stop_string_changes_nothing(start: Start) -> None:
    harness = start()
    text = spoken("hello", 3)
    request = harness.submit(prompt="hello", max_tokens=20, stop=[text])
    harness.tick()
    while request.state is not RequestState.LEAVING:
        harness.step()
    harness.scheduler.cancel(request)
    harness.run()
    assert result_of(request).text == ""
    assert harness.scheduler.counters.cancelled == 0
    harness.check_conserved()


def test_text_that_came_before_a_cancellation_is_still_there(start: Start) -> None:
    harness = start()
    request = harness.submit(prompt="hello", max_tokens=10)
    harness.tick()
    harness.step(3)
    harness.scheduler.cancel(request)
    harness.run()
    assert request.delivery.take_nowait() == spoken("hello", 3)


def test_one_cancellation_leaves_the_others_alone(start: Start) -> None:
    harness = start([4])
    requests = [harness.submit(prompt=f"prompt {number}", max_tokens=10) for number in range(4)]
    harness.tick()
    harness.step(3)
    harness.scheduler.cancel(requests[1])
    harness.run()
    for number in (0, 2, 3):
        assert result_of(requests[number]).text == spoken(f"prompt {number}", 10)
    decodes = [step.decode_rows for step in harness.lane.steps]
    assert decodes == [0, 4, 4, 3, 3, 3, 3, 3, 3, 3]
    harness.check_conserved()


def test_half_a_prompt_is_not_kept(start: Start) -> None:
    harness = start([1], limit=256)
    request = harness.submit(prompt=PROMPT)
    to_prefill(harness, request)
    harness.scheduler.cancel(request)
    harness.run()
    again = harness.submit(prompt=PROMPT, max_tokens=3)
    harness.run()
    assert result_of(again).usage.cached_tokens == 0
    assert result_of(again).text == spoken(PROMPT, 3)


def test_what_a_cancelled_request_had_computed_is_kept(start: Start) -> None:
    harness = start([1])
    request = harness.submit(prompt="hello", max_tokens=20)
    harness.tick()
    harness.step(4)
    harness.lane.step()  # surplus
    harness.scheduler.cancel(request)
    harness.run()
    again = harness.submit(prompt="hello" + spoken("hello", 8), max_tokens=3)
    harness.run()
    assert result_of(again).usage.cached_tokens == len("hello") + 3


def test_what_was_cached_before_survives_a_cancelled_prompt(start: Start) -> None:
    harness = start([1], limit=2048)
    harness.submit(prompt="hello", max_tokens=3)
    harness.run()
    longer = harness.submit(prompt="hello" + spoken("hello", 3) + 10 * PROMPT)
    to_prefill(harness, longer)
    assert longer.cached == len("hello") + 2
    harness.scheduler.cancel(longer)
    harness.run()
    again = harness.submit(prompt="hello" + spoken("hello", 3), max_tokens=3)
    harness.run()
    assert result_of(again).usage.cached_tokens == len("hello") + 2


@in_every_state
def test_a_deadline_ends_a_request(start: Start, bring: Bring) -> None:
    harness = start([1], limit=256)
    request = a_request(harness, bring, deadline=10)
    if bring is to_ended_unheard:
        harness.tick()
        harness.clock.advance(10)
        harness.tick()
        assert isinstance(request.delivery.outcome, Result), "it was finished in time"
        harness.check_conserved()
        return
    harness.clock.advance(9.5)
    harness.tick()
    assert request.delivery.outcome is None
    harness.clock.advance(0.5)
    harness.tick()
    error = error_of(request)
    assert isinstance(error, DeadlineExceededError)
    assert error.seconds == 10
    harness.step()
    assert request.state is RequestState.DONE
    harness.run()
    harness.check_conserved()
    assert harness.scheduler.counters.expired == 1


def test_deadlines_pass_in_their_own_order(start: Start) -> None:
    harness = start([1])
    late, early, never = (harness.submit(deadline=seconds, max_tokens=50) for seconds in (30, 10, None))
    harness.tick()
    harness.clock.advance(10)
    harness.tick()
    assert isinstance(error_of(early), DeadlineExceededError)
    assert late.delivery.outcome is None
    harness.clock.advance(20)
    harness.tick()
    assert isinstance(error_of(late), DeadlineExceededError)
    harness.run()
    assert result_of(never)
    harness.check_conserved()


def test_a_deadline_that_passes_after_the_end_changes_nothing(start: Start) -> None:
    harness = start([1])
    finished = harness.submit(deadline=10, max_tokens=3)
    cancelled = harness.submit(deadline=10)
    harness.scheduler.cancel(cancelled)
    harness.run()
    harness.clock.advance(100)
    harness.tick()
    assert result_of(finished)
    assert isinstance(error_of(cancelled), RequestCancelledError)
    assert harness.scheduler.counters.expired == 0


def test_requests_that_ended_long_before_their_deadline_are_forgotten(start: Start) -> None:
    harness = start([1])
    for _ in range(300):
        harness.submit(deadline=3600, max_tokens=1)
        harness.run()
    assert len(harness.scheduler._life.deadlines) < 100


def test_the_end_of_everything_ends_everybody_with_the_reason(start: Start) -> None:
    harness = start([2])
    done = harness.submit(max_tokens=1)
    harness.run()
    running = [harness.submit(prompt=PROMPT[:20], max_tokens=20) for _ in range(2)]
    harness.tick()
    waiting = [harness.submit() for _ in range(3)]
    reason = EngineClosedError("over")
    harness.scheduler.end_all(reason)
    outcomes: list[Ending | None] = [request.delivery.outcome for request in [*running, *waiting]]
    assert outcomes == [reason] * 5
    assert isinstance(done.delivery.outcome, Result)
    harness.tick()
    harness.step()
    assert harness.scheduler.idle
    harness.check_conserved()


def test_leases_come_back_even_when_no_lane_answers_any_more(start: Start) -> None:
    harness = start([2])
    request = harness.submit(max_tokens=20)
    harness.tick()
    harness.step(3)
    harness.scheduler.end_all(EngineClosedError("over"))
    harness.scheduler.release_all()
    assert request.state is RequestState.DONE
    harness.check_books()
    assert harness.pool.free == harness.pool.places


@pytest.mark.parametrize("neighbours", [0, 1])
def test_who_left_late_is_not_taken_for_a_newer_request_of_the_same_id(start: Start, neighbours: int) -> None:
    harness = start([2], limit=256)
    first = harness.submit(prompt="first", max_tokens=5)
    for _ in range(neighbours):
        harness.submit(prompt="neighbour", max_tokens=40)
    to_decoding(harness, first)
    while first.id in harness.lane.rows:
        harness.lane.step()
    harness.scheduler.cancel(first)
    harness.tick()
    assert first.state is RequestState.DONE, "it has ended by itself"
    second = harness.submit(prompt="second", max_tokens=5, request_id=first.id)
    harness.run()
    assert result_of(second).text == harness.alone(second)


def test_who_was_parked_late_is_not_taken_for_a_newer_request_of_the_same_id(start: Start) -> None:
    harness = start([3], limit=256, park=Parking.SWAP)
    first = harness.submit(5, prompt="first", max_tokens=4)
    harness.submit(1, prompt="neighbour", max_tokens=4)
    harness.submit(1, prompt="neighbour", max_tokens=40)
    to_decoding(harness, first)
    harness.submit(1, prompt="urgent", max_tokens=4)
    harness.tick()
    assert first.id in harness.scheduler.ledgers["lane-0"].parking
    harness.lane.step(begun=True)
    harness.tick()
    assert first.state is RequestState.DONE, "it has ended by itself"
    second = harness.submit(5, prompt="second", max_tokens=5, request_id=first.id)
    harness.tick()
    harness.submit(1, prompt="another", max_tokens=4)
    harness.tick()
    assert harness.kinds(second).count(EventKind.ADMITTED) == 2, "it has not begun"
    assert second.id in harness.scheduler.ledgers["lane-0"].parking
    harness.run()
    assert result_of(second).text == harness.alone(second)

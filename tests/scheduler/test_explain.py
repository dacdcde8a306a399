"""Why a request is where it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import RequestId
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.explain import Explanation
from llamalane.scheduler.gang import Gang
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.request import Request, RequestState
from tests.scheduler.building import AGING
from tests.scheduler.harness import Harness, Start
from tests.scheduler.scripted_lane import spoken

LIMIT = 256


def explain(harness: Harness, request: Request) -> Explanation:
    """Explain a request by itself, and check that the list of all says the same."""
    explanation = harness.scheduler.explain(request.id)
    assert explanation in harness.scheduler.explain_all()
    return explanation


def reason(harness: Harness, request: Request) -> str:
    return explain(harness, request).reason


def run(harness: Harness, level: int = 1, *, steps: int = 3, **options: Any) -> Request:
    """Submit a request and let it get its first tokens."""
    request = harness.submit(level, **{"max_tokens": 60, **options})
    harness.tick()
    harness.step(steps)
    assert request.state is RequestState.RUNNING
    return request


def test_it_starts_with_the_next_step(start: Start) -> None:
    harness = start([1])
    assert reason(harness, harness.submit()) == "it starts with the next step"
    harness.finish()


def test_it_runs(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    request = run(harness, 2, prompt="hello")
    told = explain(harness, request)
    assert told.reason == "it is running"
    assert (told.state, told.level, told.lane) == (RequestState.RUNNING, 2, "lane-0")
    assert (told.prompt_tokens, told.generated_tokens) == (5, 3)
    assert told.position is None
    assert told.estimated_start is None
    harness.finish()


def test_it_is_giving_way(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    batch = run(harness, 5)
    harness.submit(1)
    harness.tick()
    assert reason(harness, batch) == "it is giving way, and will wait again"
    harness.step()
    told = explain(harness, batch)
    assert told.reason == "all places are taken by requests as urgent, or that may not be displaced"
    assert (told.state, told.lane, told.generated_tokens) == (RequestState.WAITING, "lane-0", 3)
    harness.finish()


def test_it_has_ended_and_its_lane_does_not_know(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    request = run(harness)
    harness.scheduler.cancel(request)
    assert reason(harness, request) == "it has ended, and its lane has yet to drop it"
    harness.run()


def test_others_go_first(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    run(harness)
    batch = harness.submit(5)
    harness.submit(2)
    harness.submit(3)
    assert reason(harness, batch).startswith("2 more urgent or older requests")
    harness.finish()


@pytest.mark.parametrize("level", [1, 3])
def test_all_places_are_taken(start: Start, level: int) -> None:
    harness = start([1], limit=LIMIT)
    run(harness, level)
    waiting = harness.submit(level)
    harness.tick()
    assert "taken by requests as urgent" in reason(harness, waiting)
    harness.finish()


def test_the_free_places_are_reserved(start: Start) -> None:
    harness = start([2], limit=LIMIT, reserve={1: 1})
    run(harness, 5)
    waiting = harness.submit(5)
    harness.tick()
    assert reason(harness, waiting) == "the free places are reserved for more urgent requests"
    harness.finish()


def test_the_free_places_are_reserved_though_it_is_the_oldest_of_all(start: Start) -> None:
    """By its age it goes before one of level 3, which may take the place."""
    harness = start([2], limit=LIMIT, reserve={3: 1})
    run(harness, 5)
    aged = harness.submit(5)
    harness.clock.advance(3 * AGING.interval)
    harness.submit(3)
    assert explain(harness, aged).position == 0
    assert "reserved for more urgent requests" in reason(harness, aged)
    harness.finish()


def test_the_guaranteed_share_goes_first(start: Start) -> None:
    harness = start([2], limit=LIMIT, share=2)
    run(harness)
    batch, urgent = harness.submit(5), harness.submit(1)
    assert explain(harness, urgent).position == 0
    assert reason(harness, urgent) == "the guaranteed share lets one go first that has waited longer"
    harness.tick()
    assert batch.state is RequestState.RUNNING
    harness.finish()


@pytest.mark.parametrize(("places", "reserve"), [(2, {}), (3, {1: 1})])
def test_there_is_no_room_for_all_choices_of_its_prompt(start: Start, places: int, reserve: dict[int, int]) -> None:
    harness = start([places], limit=LIMIT, reserve=reserve)
    run(harness, 3)
    gang = Gang[Request]()
    choices = [harness.submit(3, gang=gang) for _ in range(2)]
    harness.tick()
    assert reason(harness, choices[0]).startswith("it starts together with the other choices of its prompt")
    harness.finish()


def test_the_cells_do_not_last(start: Start) -> None:
    harness = start([2], limit=LIMIT, cells=256)
    run(harness, prompt="x" * 150)
    waiting = harness.submit(1, prompt="y" * 150)
    harness.tick()
    assert reason(harness, waiting).startswith("the lanes' KV cells, or the targets")
    harness.finish()


def test_a_more_urgent_request_would_miss_its_target(start: Start) -> None:
    harness = start([2], limit=LIMIT, target_itl=0.1, step_seconds=lambda rows, tokens: 0.09 * rows + 0.0001 * tokens)
    run(harness, steps=10)
    waiting = harness.submit(5)
    harness.tick()
    assert reason(harness, waiting).endswith("the targets of more urgent requests, do not allow one more")
    harness.finish()


def test_no_lane_has_a_context(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    request = run(harness)
    harness.lane.fail()
    harness.tick()
    assert reason(harness, request) == "no lane has a context just now"
    harness.lane.reopen()
    harness.finish()


def test_waiting_makes_it_more_urgent_up_to_the_ceiling(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    run(harness)
    batch, agent = harness.submit(5), harness.submit(2)
    told = []
    for _ in range(4):
        told.append((explain(harness, batch).effective_priority, explain(harness, agent).effective_priority))
        harness.clock.advance(AGING.interval)
    assert told == [(5, 2), (4, 2), (3, 2), (3, 2)]
    harness.finish()


def test_whoever_has_more_before_it_is_thought_to_start_later(start: Start) -> None:
    harness = start([2], limit=LIMIT)
    for _ in range(2):
        run(harness)
    for _ in range(6):
        harness.submit(1)
    estimates = [told.estimated_start for told in harness.scheduler.explain_all()[:6]]
    times = [seconds for seconds in estimates if seconds is not None]
    assert len(times) == 6
    assert 0 < times[0] < times[5]
    assert times == sorted(times)
    harness.finish()


def test_those_who_wait_come_first_in_the_order_of_their_turns(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    running = run(harness)
    batch, normal, agent = (harness.submit(level) for level in (5, 3, 2))
    told = harness.scheduler.explain_all()
    assert [(one.request, one.position) for one in told] == [
        (agent.id, 0),
        (normal.id, 1),
        (batch.id, 2),
        (running.id, None),
    ]
    harness.finish()


@given(arrivals=st.lists(st.tuples(st.sampled_from(LEVELS), st.integers(0, 3 * int(AGING.interval))), max_size=12))
def test_positions_tell_the_order_of_admissions_if_nobody_else_comes(arrivals: list[tuple[int, int]]) -> None:
    harness = Harness([1], limit=LIMIT, max_parks=0)
    harness.submit(1, max_tokens=30)
    harness.tick()
    for level, seconds in arrivals:
        harness.submit(level, max_tokens=2)
        harness.clock.advance(seconds)
    waiting = [told for told in harness.scheduler.explain_all() if told.position is not None]
    assert [told.position for told in waiting] == list(range(len(arrivals)))
    already = sum(event.kind is EventKind.ADMITTED for event in harness.events)
    harness.finish()
    admitted = [event.request for event in harness.events if event.kind is EventKind.ADMITTED]
    assert [told.request for told in waiting] == admitted[already:]
    harness.close()


def step_until(harness: Harness, request: Request, state: RequestState) -> None:
    while request.state is not state:
        harness.step()


def names(harness: Harness, request: Request) -> list[str]:
    return [name for name, _ in explain(harness, request).events]


def test_the_events_of_a_life_are_told_in_order_with_their_times(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    batch = harness.submit(5, max_tokens=60, stop=[spoken("prompt", 12)[9:]])
    harness.clock.advance(1)
    harness.tick()
    harness.clock.advance(1)
    harness.step(2)
    told = explain(harness, batch).events
    assert told == (("accepted", 0), ("admitted", 1), ("started", 2))
    urgent = harness.submit(1, max_tokens=3)
    harness.tick()
    harness.step()
    assert names(harness, batch)[3:] == ["parked"]
    assert names(harness, urgent) == ["accepted", "admitted", "started"]
    step_until(harness, batch, RequestState.RUNNING)
    harness.step()
    harness.lane.fail()
    harness.tick()
    harness.lane.reopen()
    harness.tick()
    step_until(harness, batch, RequestState.LEAVING)
    assert names(harness, batch)[4:] == ["admitted", "started", "requeued", "admitted", "started", "ended"]
    harness.finish()


def test_whoever_is_not_there_is_not_explained(start: Start) -> None:
    harness = start([1])
    finished = harness.submit()
    harness.finish()
    for name in (finished.id, RequestId("never seen")):
        with pytest.raises(KeyError, match=name):
            harness.scheduler.explain(name)
    assert harness.scheduler.explain_all() == []


def count_calls(function: Callable[[], object]) -> int:
    """How many calls of Python functions it takes."""
    calls = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


def test_a_thousand_are_explained_in_one_pass(start: Start) -> None:
    """Twice as many requests take about twice as many calls; four times as many if each looked at all others."""
    calls = []
    for count in (500, 1000):
        harness = start([1], limit=LIMIT)
        run(harness)
        for number in range(count):
            harness.submit(number % 5 + 1, max_tokens=1, tenant=f"tenant {number % 7}")
        calls.append(count_calls(harness.scheduler.explain_all))
        assert len(harness.scheduler.explain_all()) == count + 1
    assert calls[1] < 2.5 * calls[0]


def test_nobody_can_tell_when_it_starts_while_every_lane_is_paused(start: Start) -> None:
    harness = start([1])
    harness.scheduler.pause_lane(harness.pool.lane("lane-0"))
    told = explain(harness, harness.submit())
    assert (told.reason, told.estimated_start) == ("every lane that has a context is paused", None)
    harness.scheduler.resume_lane(harness.pool.lane("lane-0"))
    harness.finish()

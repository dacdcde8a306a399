"""What is remembered of the past: the steps, the requests, and how quickly tokens came; and that it is bounded."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import RequestCancelledError
from llamalane.ids import Level, RequestId
from llamalane.scheduler import recorder as recorder_module
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.recorder import FlightRecorder, Ring
from llamalane.scheduler.request import RequestState
from llamalane.scheduler.request_view import FIRST_EVENTS, LAST_EVENTS, view_of
from llamalane.streams import FinishReason, Parking
from tests.scheduler.harness import Harness, Start


@given(size=st.integers(1, 5), entries=st.integers(0, 12), seen=st.integers(0, 12))
def test_a_ring_tells_what_is_new_and_whether_some_of_it_is_gone(size: int, entries: int, seen: int) -> None:
    ring: Ring[int] = Ring(size)
    for entry in range(entries):
        ring.append(entry)
    seen = min(seen, entries)
    fresh = list(range(seen, entries))
    assert ring.since(seen) == fresh[-size:]
    assert ring.lost(seen) == (len(fresh) > size)


def recorder_of(harness: Harness) -> FlightRecorder:
    return harness.scheduler.view.recorder


def test_each_step_is_recorded_with_what_it_computed(start: Start) -> None:
    harness = start((2,))
    harness.submit(prompt="abcd", max_tokens=3)
    harness.run()
    steps = recorder_of(harness).steps["lane-0"].since(0)
    assert [(one.number, one.decode_rows, one.prefill_tokens) for one in steps] == [(1, 0, 4), (2, 1, 0), (3, 1, 0)]
    assert all(one.seconds > 0 and not one.abandoned for one in steps)
    assert [one.begin for one in steps] == sorted(one.begin for one in steps)
    (count,) = recorder_of(harness).tokens
    assert (count.generated, count.prompt) == (3, 4)


def test_a_step_that_was_broken_off_is_recorded_as_that(start: Start) -> None:
    harness = start((1,), abort_after=0.0, max_step_tokens=4)
    harness.submit(5, prompt="a" * 40)
    harness.step(3)
    harness.submit(1, prompt="b")
    harness.run()
    assert any(one.abandoned for one in recorder_of(harness).steps["lane-0"].since(0))


def test_a_life_is_kept_when_it_has_ended(start: Start) -> None:
    harness = start((1,))
    request = harness.submit(2, prompt="ab", max_tokens=4, tenant="alice")
    harness.run()
    life = recorder_of(harness).ended[request.id]
    assert (life.tenant, life.level, life.lane, life.outcome) == ("alice", 2, "lane-0", FinishReason.LENGTH)
    assert (life.prompt_tokens, life.generated_tokens) == (2, 4)
    kinds = [kind for kind, _ in life.events]
    assert kinds == [EventKind.ACCEPTED, EventKind.ADMITTED, EventKind.STARTED, EventKind.ENDED]
    assert life.first_token is not None
    assert life.first_token >= life.events[1][1]


def test_a_request_that_failed_says_with_which_error(start: Start) -> None:
    harness = start((1,))
    request = harness.submit()
    harness.scheduler.cancel(request)
    assert recorder_of(harness).ended[request.id].outcome is RequestCancelledError


def test_times_to_the_first_token_and_gaps_go_by_level(start: Start) -> None:
    harness = start((2,))
    harness.submit(1, max_tokens=5)
    harness.submit(4, max_tokens=3)
    harness.run()
    recorder, now = recorder_of(harness), harness.clock.now()
    counts = {level: histogram.quantiles([0.5], now).count for level, histogram in recorder.first_token.items()}
    assert counts == {1: 1, 2: 0, 3: 0, 4: 1, 5: 0}
    gaps = {level: histogram.quantiles([0.5], now).count for level, histogram in recorder.gap.items()}
    assert gaps == {1: 4, 2: 0, 3: 0, 4: 2, 5: 0}


def test_the_gap_of_a_request_that_was_parked_is_as_long_as_its_client_waited(start: Start) -> None:
    harness = start((1,), park=Parking.PAUSE)
    harness.submit(5, max_tokens=20)
    harness.step(3)
    harness.submit(1, max_tokens=10)
    while not harness.scheduler.idle:
        harness.clock.advance(0.1)
        harness.step()
    gaps = recorder_of(harness).gap[Level(5)]
    usual, longest = gaps.quantiles([0.5, 1.0], harness.clock.now()).values
    assert usual == pytest.approx(0.1, rel=0.05)
    assert longest == pytest.approx(1.1, rel=0.15)


def test_everything_that_is_remembered_is_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "ENDED", 5)
    harness = start((2,))
    for _ in range(40):
        harness.submit(max_tokens=2)
        harness.run()
    recorder = recorder_of(harness)
    assert list(recorder.ended) == [f"request-{number}" for number in range(36, 41)]
    assert recorder.steps["lane-0"].total > 60
    assert len(recorder.steps["lane-0"].since(0)) <= recorder_module.STEPS
    assert recorder.changes.total == 4 * 40


def test_of_a_request_to_which_much_happened_the_beginning_and_the_end_are_seen(start: Start) -> None:
    harness = start((1,))
    request = harness.submit()
    request.events = [(EventKind.PARKED, float(number)) for number in range(1000)]
    times = [time for _, time in view_of(request).events]
    assert times == [*range(FIRST_EVENTS), *range(1000 - LAST_EVENTS, 1000)]


def test_the_view_tells_who_waits_who_runs_and_who_is_paused(start: Start) -> None:
    harness = start((1,), park=Parking.PAUSE)
    paused = harness.submit(5, prompt="abc", max_tokens=20, tenant="alice")
    harness.step(3)
    running = harness.submit(1, prompt="x", max_tokens=30)
    waiting = harness.submit(3)
    harness.step(4)
    view = harness.scheduler.view
    assert {one.id: one.state for one in view.requests(10)} == {
        running.id: RequestState.RUNNING,
        waiting.id: RequestState.WAITING,
        paused.id: RequestState.WAITING,
    }
    assert [one.id for one in view.requests(1)] == [running.id]
    assert [(one.request, one.tenant) for one in view.occupants()] == [(running.id, ""), (paused.id, "alice")]
    sequences = {one.request: one.sequence for one in view.occupants()}
    holders = {one.sequence: one.use.value for one in view.holdings()["lane-0"]}
    assert holders[sequences[running.id]] == "running"
    assert holders[sequences[paused.id]] == "paused"
    assert view.find(RequestId("nobody")) is None
    harness.run()
    assert not view.requests(10)
    assert not view.occupants()
    ended = view.find(waiting.id)
    assert ended is not None
    assert ended.outcome is FinishReason.LENGTH


@pytest.mark.anyio
async def test_whoever_waits_is_woken_by_news_and_not_by_those_that_are_known() -> None:
    recorder = FlightRecorder([], 0.0)
    recorder.announce()
    woken: list[int] = []

    async def wait(version: int) -> None:
        await recorder.wait(version)
        woken.append(recorder.version)

    with anyio.fail_after(5):
        await recorder.wait(0)  # there were news meanwhile
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(wait, recorder.version)
            await anyio.wait_all_tasks_blocked()
            assert woken == []
            recorder.announce()
    assert woken == [2, 2]


def test_whoever_follows_hears_of_every_turn_of_the_scheduler(start: Start) -> None:
    harness = start((1,))
    recorder = recorder_of(harness)
    before = recorder.version
    harness.submit()
    harness.tick()
    assert recorder.version > before

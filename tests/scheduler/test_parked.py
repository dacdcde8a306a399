"""Requests that were parked: how they come back, and how they end before that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llamalane.errors import DeadlineExceededError, EngineClosedError, RequestCancelledError
from llamalane.scheduler.request import Request, RequestState
from llamalane.streams import Parking
from tests.scheduler.harness import Harness, Start, error_of, result_of
from tests.scheduler.scripted_lane import spoken

LIMIT = 256
PROMPT = "a prompt of some length "

in_every_way = pytest.mark.parametrize("park", Parking)


def begin(harness: Harness, level: int = 5, *, prompt: str = PROMPT, **options: object) -> Request:
    """Let a request run until it has got three tokens."""
    request = harness.submit(level, prompt=prompt, **{"max_tokens": 20, **options})
    harness.tick()
    while len(request.generated) < 3:
        harness.step()
    return request


def displace(harness: Harness, request: Request, *, max_tokens: int = 10) -> Request:
    """Let an urgent request take the place of one that runs, and return it."""
    urgent = harness.submit(1, prompt="urgent", max_tokens=max_tokens)
    harness.tick()
    assert request.state is RequestState.PARKING
    return urgent


def until_it_runs(harness: Harness, request: Request) -> None:
    """Wait for a request's turn to come again."""
    while request.state is not RequestState.RUNNING:
        harness.step()


def parks(harness: Harness) -> dict[str, int]:
    return dict(harness.scheduler.counters.parks)


@in_every_way
def test_a_parked_request_goes_on_with_the_same_text(start: Start, park: Parking) -> None:
    harness = start([1], limit=LIMIT, park=park)
    batch = begin(harness)
    displace(harness, batch)
    before = len(batch.generated)
    harness.step()
    assert batch.state is RequestState.WAITING
    assert len(batch.generated) == before
    assert (batch.lease is not None) == (park is Parking.PAUSE)
    assert (batch.saved is not None) == (park is Parking.SWAP)
    until_it_runs(harness, batch)
    harness.step()
    computed_again = harness.lane.steps[-1].prefill_tokens
    assert computed_again == (len(PROMPT) + before if park is Parking.RECOMPUTE else 0)
    harness.finish()
    assert parks(harness) == {park.value: 1}
    assert batch.parks == 1
    assert batch.delivery.take_nowait() == spoken(PROMPT, 20), "text was lost or repeated"


@in_every_way
@pytest.mark.parametrize("steps", range(4))
def test_a_prompt_that_is_half_computed_can_be_parked(start: Start, park: Parking, steps: int) -> None:
    harness = start([1], limit=LIMIT, park=park, max_step_tokens=16)
    batch = harness.submit(5, prompt="p" * 60)
    harness.tick()
    harness.step(steps)
    displace(harness, batch)
    harness.finish()
    assert sum(step.prefill_tokens for step in harness.lane.steps) == (
        60 + len("urgent") + (16 * steps if park is Parking.RECOMPUTE else 0)
    )


@in_every_way
def test_a_request_can_be_parked_again_and_again(start: Start, park: Parking) -> None:
    harness = start([1], limit=LIMIT, park=park)
    batch = begin(harness)
    for _ in range(3):
        urgent = displace(harness, batch, max_tokens=2)
        while urgent.state is not RequestState.DONE or batch.state is not RequestState.RUNNING:
            harness.step()
    assert parks(harness) == {park.value: 3}
    harness.finish()


def test_without_a_sequence_to_spare_cells_are_swapped_or_computed_again_by_their_cost(start: Start) -> None:
    for swap_bytes, chosen in ((1 << 20, Parking.SWAP), (0, Parking.RECOMPUTE)):
        harness = start([1], limit=LIMIT, spare=0, swap_bytes=swap_bytes)
        displace(harness, begin(harness))
        harness.finish()
        assert parks(harness) == {chosen.value: 1}


def test_a_swap_that_is_too_large_is_given_up_and_not_tried_again(start: Start) -> None:
    harness = start([1], limit=LIMIT, park=Parking.SWAP, swap_bytes=len(PROMPT))
    batch = begin(harness)
    displace(harness, batch, max_tokens=2)
    harness.step()
    assert batch.state is RequestState.WAITING
    assert batch.saved is None, "more bytes are kept than may be"
    until_it_runs(harness, batch)
    harness.step()
    displace(harness, batch, max_tokens=2)
    harness.finish()
    assert parks(harness) == {"swap": 1, "recompute": 1}


def test_a_swap_that_cannot_be_put_back_is_computed_again(start: Start) -> None:
    harness = start([1], limit=LIMIT, park=Parking.SWAP, swap_works=False)
    batch = begin(harness)
    displace(harness, batch)
    before = batch.length
    until_it_runs(harness, batch)
    harness.step()
    assert harness.lane.steps[-1].prefill_tokens == before
    harness.finish()


def test_a_swap_that_cannot_be_put_back_leaves_nothing_that_is_taken_for_cached(start: Start) -> None:
    """Not even when the request ends before any of it was computed again, on a sequence that kept its beginning."""
    harness = start([1], limit=LIMIT, park=Parking.SWAP, swap_works=False, max_step_tokens=8)
    batch = begin(harness)
    same_prompt = harness.submit(1, prompt=PROMPT, max_tokens=2)
    while batch.state is not RequestState.RUNNING or same_prompt.state is not RequestState.DONE:
        harness.step()
    harness.step()
    harness.scheduler.cancel(batch)
    harness.run()
    harness.submit(prompt=PROMPT + spoken(PROMPT, 5), max_tokens=3)
    harness.finish()
    assert harness.lane.wasted_joins == 0


@pytest.mark.parametrize("levels", [(4, 5), (5, 4)])
def test_the_least_urgent_paused_request_loses_its_cells_when_they_are_wanted(
    start: Start, levels: tuple[int, int]
) -> None:
    harness = start([2], limit=LIMIT, cells=256)
    paused = [begin(harness, level, prompt=f"{level}" * 50) for level in levels]
    urgent = [harness.submit(1, prompt="u", max_tokens=count) for count in (3, 20)]
    harness.tick()
    harness.step()
    assert all(request.lease is not None and request.lease.paused for request in paused)
    large = harness.submit(1, prompt="l" * 120, max_tokens=20)
    while large.state is not RequestState.RUNNING:
        harness.step()
    assert urgent[1].state is RequestState.RUNNING, "nobody who runs had to give way"
    assert [request.lease is not None for request in paused] == [level == 4 for level in levels]
    harness.step()
    assert [request.saved is not None for request in paused] == [level == 5 for level in levels]
    harness.finish()
    assert parks(harness) == {"pause": 2, "swap": 1}


def test_a_paused_request_goes_on_elsewhere_when_its_lane_has_no_place(start: Start) -> None:
    harness = start([1, 1], limit=LIMIT)
    batch = begin(harness)
    other = begin(harness, 1, prompt="other", max_tokens=6)
    assert (batch.lane, other.lane) == ("lane-0", "lane-1")
    urgent = displace(harness, batch, max_tokens=60)
    until_it_runs(harness, batch)
    assert urgent.state is RequestState.RUNNING
    assert batch.lane == "lane-1"
    harness.step()
    assert [sequence for sequence, cells in harness.lane.cells.items() if cells] == [
        harness.lane.rows[urgent.id].join.sequence
    ], "it has left its cells behind"
    harness.finish()


@in_every_way
@pytest.mark.parametrize("confirmed", [True, False])
def test_a_lane_that_fails_loses_no_parked_request(start: Start, park: Parking, confirmed: bool) -> None:
    harness = start([1], limit=LIMIT, park=park)
    batch = begin(harness)
    displace(harness, batch)
    if confirmed:
        harness.step()
        assert batch.state is RequestState.WAITING
    harness.lane.fail()
    harness.tick()
    assert batch.state is RequestState.WAITING
    assert batch.lease is None
    harness.lane.reopen()
    harness.finish()
    assert batch.restarts == (0 if confirmed else 1)


def test_a_request_swapped_from_a_lane_that_fails_goes_on_from_host_memory(start: Start) -> None:
    harness = start([1], limit=LIMIT, park=Parking.SWAP)
    batch = begin(harness)
    urgent = displace(harness, batch, max_tokens=3)
    harness.step()
    before = batch.length
    harness.lane.fail()
    harness.tick()
    harness.lane.reopen()
    until_it_runs(harness, batch)
    harness.step()
    assert harness.lane.steps[-1].prefill_tokens == 0, "the cells were in host memory"
    assert batch.length > before
    harness.finish()
    assert urgent.restarts == 1


@in_every_way
def test_a_request_that_ends_in_the_step_after_which_it_was_to_be_parked(start: Start, park: Parking) -> None:
    harness = start([1], limit=LIMIT, park=park)
    batch = begin(harness, max_tokens=4)
    displace(harness, batch)
    harness.lane.step(begun=True)
    harness.tick()
    assert result_of(batch).text == spoken(PROMPT, 4)
    assert batch.state is RequestState.DONE
    harness.finish()
    assert batch.parks == 0
    assert harness.lane.wasted_joins == 0


@in_every_way
@pytest.mark.parametrize("begun", [True, False], ids=["in the last step", "in a step before"])
def test_a_stop_string_can_be_met_while_the_request_is_to_be_parked(start: Start, park: Parking, begun: bool) -> None:
    harness = start([1], limit=LIMIT, park=park)
    text = spoken(PROMPT, 5)
    batch = begin(harness, stop=[text[3:5]])
    displace(harness, batch)
    for _ in range(2):
        harness.lane.step(begun=True)
    if not begun:
        harness.lane.step()  # the lane has taken it off before anybody heard of the stop string
    harness.tick()
    assert result_of(batch).text == text[:3]
    harness.finish()
    assert batch.parks == 0


@in_every_way
@pytest.mark.parametrize("after", range(1, 7))
def test_a_stop_string_is_met_wherever_the_request_was_parked(start: Start, park: Parking, after: int) -> None:
    harness = start([1], limit=LIMIT, park=park)
    text = spoken(PROMPT, 9)
    batch = harness.submit(5, prompt=PROMPT, max_tokens=20, stop=[text[3:9]])
    harness.tick()
    while len(batch.generated) < after:
        harness.step()
    displace(harness, batch)
    harness.finish()
    assert result_of(batch).text == text[:3]
    assert len(result_of(batch).tokens) == 9
    assert batch.parks == 1


Bring = Callable[[Harness, Request], None]


def to_parking(harness: Harness, request: Request) -> None:
    """Its lane has not been heard of yet."""
    displace(harness, request)


def to_parked_unheard(harness: Harness, request: Request) -> None:
    """Its lane has taken it off, and the loop has not heard of it."""
    displace(harness, request)
    harness.lane.step()


def to_parked(harness: Harness, request: Request) -> None:
    """It waits."""
    displace(harness, request)
    harness.step()
    assert request.state is RequestState.WAITING


def to_resumed(harness: Harness, request: Request) -> None:
    """The plan with it lies in the mailbox."""
    to_parked(harness, request)
    until_it_runs(harness, request)


in_every_state = pytest.mark.parametrize("bring", [to_parking, to_parked_unheard, to_parked, to_resumed])


@in_every_way
@in_every_state
def test_a_parked_request_can_be_cancelled(start: Start, park: Parking, bring: Bring) -> None:
    harness = start([1], limit=LIMIT, park=park)
    batch = begin(harness)
    bring(harness, batch)
    harness.scheduler.cancel(batch)
    harness.scheduler.cancel(batch)
    assert isinstance(error_of(batch), RequestCancelledError)
    harness.tick()
    harness.step()
    assert batch.state is RequestState.DONE
    assert harness.scheduler.counters.cancelled == 1
    follow_up = harness.submit(prompt=PROMPT + spoken(PROMPT, 10), max_tokens=3)
    harness.finish()
    assert result_of(follow_up)
    assert harness.lane.wasted_joins == 0


@in_every_way
@in_every_state
def test_a_deadline_ends_a_parked_request(start: Start, park: Parking, bring: Bring) -> None:
    harness = start([1], limit=LIMIT, park=park)
    batch = begin(harness, deadline=10)
    bring(harness, batch)
    harness.clock.advance(10)
    harness.tick()
    assert isinstance(error_of(batch), DeadlineExceededError)
    harness.step()
    assert batch.state is RequestState.DONE
    harness.finish()
    assert harness.scheduler.counters.expired == 1


@in_every_way
@in_every_state
def test_the_end_of_everything_ends_parked_requests(start: Start, park: Parking, bring: Bring) -> None:
    harness = start([2], limit=LIMIT, park=park)
    batch = begin(harness)
    other = begin(harness, prompt="other")
    displace(harness, other, max_tokens=60)
    bring(harness, batch)
    reason = EngineClosedError("over")
    harness.scheduler.end_all(reason)
    assert error_of(batch) is error_of(other) is reason
    harness.scheduler.release_all()
    harness.check_books()
    assert harness.pool.free == harness.pool.places
    assert harness.scheduler.idle


@in_every_way
def test_a_model_that_cannot_drop_the_end_of_a_sequence_can_be_parked(start: Start, park: Parking) -> None:
    harness = start([1], limit=LIMIT, park=park, can_roll_back=False)
    batch = begin(harness)
    displace(harness, batch)
    harness.lane.step(begun=True)
    harness.finish()
    assert harness.lane.wasted_joins == 0


def on_unlike_lanes(start: Start) -> tuple[Harness, Request]:
    """Let a request of the second lane, which has two parts where the others have one and two, be swapped."""
    harness = start([1, 2, 2], limit=LIMIT, partitioned=True, spare=0, park=Parking.SWAP)
    harness.scheduler.pause_lane(harness.scheduler.ledgers["lane-0"].lane)
    harness.scheduler.pause_lane(harness.scheduler.ledgers["lane-2"].lane)
    batch = begin(harness)
    other = begin(harness, level=4)
    assert batch.lane == other.lane == "lane-1"
    displace(harness, batch, max_tokens=60)
    harness.step()
    assert batch.saved is not None
    return harness, batch


def test_saved_cells_are_put_back_on_a_lane_that_is_divided_as_theirs_was(start: Start) -> None:
    harness, batch = on_unlike_lanes(start)
    length = batch.length
    harness.scheduler.resume_lane(harness.scheduler.ledgers["lane-0"].lane)
    harness.scheduler.resume_lane(harness.scheduler.ledgers["lane-2"].lane)
    harness.tick()
    assert (batch.state, batch.lane, batch.reused) == (RequestState.RUNNING, "lane-2", length - 1)
    harness.finish()
    assert batch.delivery.take_nowait() == spoken(PROMPT, 20)


def test_on_a_lane_that_cannot_take_them_they_are_given_up_at_once_and_computed_again(start: Start) -> None:
    harness, batch = on_unlike_lanes(start)
    saved = harness.scheduler.counters.parked_bytes_in
    harness.scheduler.resume_lane(harness.scheduler.ledgers["lane-0"].lane)
    harness.tick()
    assert (batch.state, batch.lane, batch.saved, batch.reused) == (RequestState.RUNNING, "lane-0", None, 0)
    assert harness.scheduler.counters.parked_bytes_in == saved, "nothing went in"
    harness.scheduler.resume_lane(harness.scheduler.ledgers["lane-2"].lane)
    harness.finish()
    assert batch.delivery.take_nowait() == spoken(PROMPT, 20)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_a_long_sequence_is_swapped_where_it_keeps_nobody_waiting_for_long(
    start: Start, partitioned: bool, alone: bool
) -> None:
    """A first guess is 10 µs for a cell, so 1,200 cells would take 12 ms, which is more than 10."""
    harness = start([1 if alone else 2], limit=2048, partitioned=partitioned, spare=0, max_step_tokens=2048)
    batch = begin(harness, prompt="p" * 1200)
    if not alone:
        begin(harness, level=4, max_tokens=100)
    displace(harness, batch)
    waits = partitioned and not alone
    assert parks(harness) == {"recompute" if waits else "swap": 1}
    harness.finish()
    assert batch.delivery.take_nowait() == spoken("p" * 1200, 20)

"""The choices of a prompt start together, or not at all."""

from __future__ import annotations

import contextlib

import pytest

from llamalane.errors import InvalidRequestError, LlamalaneError, QueueFullError
from llamalane.ids import Level
from llamalane.scheduler.gang import Gang
from llamalane.scheduler.limits import TenantLimit
from llamalane.scheduler.request import Request, RequestState
from tests.scheduler.harness import Harness, Start, result_of

PROMPT = "tell me a story about llamas in the mountains"


def submit_gang(harness: Harness, size: int, level: int = 3, tenant: str = "", max_tokens: int = 6) -> list[Request]:
    gang = Gang[Request]()
    requests = []
    for _ in range(size):
        request = harness.maker.make(level, harness.clock.now(), prompt=PROMPT, max_tokens=max_tokens, tenant=tenant)
        request.gang = gang
        requests.append(request)
    with contextlib.ExitStack() as stack:
        slots = [stack.enter_context(harness.scheduler.queue.reserve_nowait(Level(level))) for _ in requests]
        harness.scheduler.submit_all(requests, slots)
    harness.requests += requests
    return requests


def running(requests: list[Request]) -> int:
    return sum(request.state is RequestState.RUNNING for request in requests)


def test_a_gang_waits_until_there_is_a_place_for_each(start: Start) -> None:
    harness = start([4])
    first, second = harness.submit(max_tokens=4), harness.submit(max_tokens=12)
    harness.tick()
    gang = submit_gang(harness, 3)
    harness.tick()
    assert running(gang) == 0
    while first.state is not RequestState.DONE:
        assert running(gang) == 0
        harness.step()
    assert running(gang) == 3
    assert second.state is RequestState.RUNNING
    harness.finish()


def test_nobody_as_urgent_overtakes_a_gang_that_waits(start: Start) -> None:
    harness = start([2])
    harness.submit(max_tokens=5)
    harness.tick()
    gang = submit_gang(harness, 2)
    late = harness.submit(max_tokens=2)
    harness.tick()
    assert late.state is RequestState.WAITING
    harness.finish()
    assert (gang[1].admitted_at or 0) <= (late.admitted_at or 0)


def test_a_gang_computes_its_prompt_once(start: Start) -> None:
    harness = start([4])
    gang = submit_gang(harness, 4)
    harness.finish()
    assert sum(step.prefill_tokens for step in harness.lane.steps) == len(PROMPT)
    assert [result_of(request).usage.cached_tokens for request in gang[1:]] == [len(PROMPT) - 1] * 3


def test_an_urgent_gang_displaces_as_many_as_it_needs(start: Start) -> None:
    harness = start([4])
    batch = [harness.submit(5, max_tokens=30) for _ in range(4)]
    harness.tick()
    harness.step(2)
    gang = submit_gang(harness, 3, level=1)
    harness.tick()
    assert running(gang) == 3
    assert sum(request.state is RequestState.RUNNING for request in batch) == 1
    harness.finish()


def test_a_gang_that_cannot_have_enough_places_displaces_nobody(start: Start) -> None:
    harness = start([3])
    equals = [harness.submit(1, max_tokens=8) for _ in range(2)]
    batch = harness.submit(5, max_tokens=30)
    harness.tick()
    harness.step()
    gang = submit_gang(harness, 3, level=1)
    harness.tick()
    assert running(gang) == 0
    assert batch.parks == 0
    assert running(equals) == 2
    harness.finish()


def test_a_gang_does_not_take_places_that_are_reserved(start: Start) -> None:
    harness = start([3], reserve={1: 1})
    gang = submit_gang(harness, 3, level=5)
    harness.tick()
    assert running(gang) == 0
    harness.scheduler.cancel(gang[0])
    harness.tick()
    assert running(gang) == 2
    harness.finish()


def test_members_end_each_for_itself(start: Start) -> None:
    harness = start([2])
    gang = submit_gang(harness, 2)
    harness.tick()
    harness.step()
    harness.scheduler.cancel(gang[0])
    harness.run()
    assert result_of(gang[1]).text == harness.alone(gang[1])
    harness.check_conserved()


def test_a_gang_leaves_reserved_places_free_when_it_makes_room(start: Start) -> None:
    harness = start([4], reserve={1: 1})
    batch = [harness.submit(5, max_tokens=30) for _ in range(4)]
    harness.tick()
    harness.step(2)
    assert running(batch) == 3
    gang = submit_gang(harness, 3, level=2)
    harness.tick()
    assert running(gang) == 3
    assert harness.pool.free == 1
    harness.finish()


def test_predicted_growth_is_that_of_the_whole_gang(start: Start) -> None:
    harness = start([4], limit=256, cells=512)
    first = harness.submit(max_tokens=200)
    harness.tick()
    gang = submit_gang(harness, 3, max_tokens=150)
    harness.tick()
    assert running(gang) == 0, "together they will need more than there is"
    while first.state is not RequestState.DONE:
        harness.step()
    started = [request.admitted_at for request in gang]
    assert len(set(started)) == 1, "they start together or not at all"
    harness.finish()


def fill_queue(harness: Harness) -> list[Request]:
    harness.submit(1, max_tokens=40)
    harness.tick()
    return [harness.submit(5) for _ in range(4)]


def test_a_gang_sheds_as_many_as_it_needs(start: Start) -> None:
    harness = start([1], max_requests=4, shed=True)
    batch = fill_queue(harness)
    submit_gang(harness, 1, level=2)
    gang = submit_gang(harness, 2, level=2)  # more than there are places, so it will be cancelled below
    assert [request.state for request in batch] == [RequestState.WAITING, *[RequestState.DONE] * 3]
    for request in gang:
        harness.scheduler.cancel(request)
    harness.finish()


@pytest.mark.parametrize(("limit", "error"), [(1, InvalidRequestError), (3, LlamalaneError)])
def test_a_gang_that_is_refused_turns_nobody_out(start: Start, limit: int, error: type[LlamalaneError]) -> None:
    harness = start([1], max_requests=4, shed=True, limits={"bob": TenantLimit(concurrent=limit)})
    batch = fill_queue(harness)
    if limit == 3:
        harness.scheduler.cancel(batch.pop())
        harness.scheduler.cancel(batch.pop())
        for _ in range(2):
            harness.submit(5, tenant="bob")
    waiting = len(harness.scheduler.queue)
    with pytest.raises(error):
        submit_gang(harness, 2, level=2, tenant="bob")
    assert len(harness.scheduler.queue) == waiting
    assert all(request.state is RequestState.WAITING for request in batch)
    assert not harness.scheduler.counters.cancelled - (2 if limit == 3 else 0)
    harness.finish()


def test_a_gang_for_which_too_few_can_be_turned_out_is_refused_whole(start: Start) -> None:
    harness = start([1], max_requests=4, shed=True)
    fill_queue(harness)
    with pytest.raises(QueueFullError):
        submit_gang(harness, 5, level=2)
    assert len(harness.scheduler.queue) == 4
    harness.finish()

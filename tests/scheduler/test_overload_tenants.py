"""Tenants that have as much under way as they may, and requests that replace older ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llamalane.errors import (
    InvalidRequestError,
    LlamalaneError,
    QueueFullError,
    SupersededError,
    TenantLimitError,
)
from llamalane.ids import Level
from llamalane.scheduler.lane_news import MAX_RESTARTS
from llamalane.scheduler.limits import TenantLimit
from llamalane.scheduler.request import Request, RequestState
from tests.scheduler.harness import Harness, Start, error_of, result_of
from tests.scheduler.scripted_lane import spoken
from tests.scheduler.test_overload import LIMIT, busy, wait_on

ME = "me"
PER_MINUTE = 60 * 4
"""Four tokens a second, so that all moments are exact."""

End = Callable[[Harness], Request]


def mine(harness: Harness, level: int = 5, *, max_tokens: int = 16, **options: Any) -> Request:
    """Submit the one request that the tenant may have."""
    request = harness.submit(level, prompt="mine", max_tokens=max_tokens, tenant=ME, **options)
    with pytest.raises(TenantLimitError) as caught:
        harness.submit(tenant=ME)
    assert (caught.value.reason, caught.value.limit) == ("concurrent", 1)
    return request


def begun(harness: Harness, **options: Any) -> Request:
    request = mine(harness, **options)
    harness.tick()
    harness.step(3)
    assert request.generated
    return request


def displaced(harness: Harness) -> Request:
    request = begun(harness)
    harness.submit(1, prompt="urgent", max_tokens=5)
    harness.tick()
    assert request.state is RequestState.PARKING
    return request


def finished(harness: Harness) -> Request:
    return begun(harness)


def stopped_at_a_string(harness: Harness) -> Request:
    request = begun(harness, stop=[spoken("mine", 5)[3:]])
    harness.step(2)
    assert request.state is RequestState.LEAVING
    return request


def cancelled_while_waiting(harness: Harness) -> Request:
    harness.scheduler.cancel(request := mine(harness))
    return request


def cancelled_while_running(harness: Harness) -> Request:
    harness.scheduler.cancel(request := begun(harness))
    return request


def cancelled_while_parking(harness: Harness) -> Request:
    harness.scheduler.cancel(request := displaced(harness))
    return request


def cancelled_while_parked(harness: Harness) -> Request:
    request = displaced(harness)
    harness.step()
    assert request.state is RequestState.WAITING
    harness.scheduler.cancel(request)
    return request


def late_while_waiting(harness: Harness) -> Request:
    harness.submit(1, max_tokens=20)
    harness.tick()
    request = mine(harness, deadline=1.0)
    harness.clock.advance(1.0)
    return request


def late_while_running(harness: Harness) -> Request:
    request = begun(harness, deadline=1.0)
    harness.clock.advance(1.0)
    return request


def turned_out(harness: Harness) -> Request:
    harness.submit(1, max_tokens=20)
    harness.tick()
    request = mine(harness)
    for _ in range(3):
        harness.submit(2)
    return request


def out_of_a_failing_lane(harness: Harness) -> Request:
    request = mine(harness)
    for _ in range(MAX_RESTARTS):
        harness.tick()
        harness.lane.fail()
        harness.tick()
        harness.lane.reopen()
    return request


def without_a_token_to_choose(harness: Harness) -> Request:
    request = begun(harness)
    harness.lane.broken.add(request.id)
    return request


def at_the_end_of_everything(harness: Harness) -> Request:
    request = begun(harness)
    harness.scheduler.end_all(LlamalaneError("over"))
    return request


@pytest.mark.parametrize(
    "end",
    [
        finished,
        stopped_at_a_string,
        cancelled_while_waiting,
        cancelled_while_running,
        cancelled_while_parking,
        cancelled_while_parked,
        late_while_waiting,
        late_while_running,
        turned_out,
        out_of_a_failing_lane,
        without_a_token_to_choose,
        at_the_end_of_everything,
    ],
)
def test_however_a_request_ends_its_tenant_is_charged_with_what_it_used(start: Start, end: End) -> None:
    limit = TenantLimit(concurrent=1, tokens_per_minute=PER_MINUTE)
    harness = start([1], limit=LIMIT, max_requests=3, shed=True, limits={ME: limit})
    request = end(harness)
    harness.run()
    used = request.length if request.admitted_at is not None else 0
    left = min(PER_MINUTE, PER_MINUTE - used + int(4 * harness.clock.now()))
    with pytest.raises((TenantLimitError, InvalidRequestError)):
        harness.submit(prompt="x" * left, max_tokens=1, tenant=ME)
    again = harness.submit(prompt="x" * (left - 1), max_tokens=1, tenant=ME)
    harness.run()
    assert result_of(again)
    harness.check_conserved()


def test_whoever_the_queue_refuses_leaves_no_trace(start: Start) -> None:
    limit = TenantLimit(concurrent=1, tokens_per_minute=PER_MINUTE)
    harness = busy(start, max_waiting_tokens=10, limits={ME: limit})
    other = harness.submit(prompt="x" * 8)
    with pytest.raises(QueueFullError):
        harness.submit(prompt="x" * 3, max_tokens=100, tenant=ME, supersede="editor")
    assert wait_on([other])
    harness.scheduler.cancel(other)
    accepted = harness.submit(prompt="x", max_tokens=PER_MINUTE - 1, tenant=ME, supersede="editor")
    harness.finish()
    assert result_of(accepted)


def test_without_max_tokens_a_tenant_is_charged_with_a_likely_output(start: Start) -> None:
    harness = start([1], limit=LIMIT, limits={ME: TenantLimit(tokens_per_minute=PER_MINUTE)})
    for _ in range(40):
        harness.growth.observe(Level(3), 20)
    harness.submit(prompt="x" * 20, max_tokens=230, tenant=ME)
    harness.submit(prompt="x" * 180, max_tokens=20, tenant=ME)
    with pytest.raises(TenantLimitError) as caught:
        harness.submit(prompt="x", max_tokens=20, tenant=ME)
    assert caught.value.reason == "tokens_per_minute"
    assert caught.value.retry_after == pytest.approx(21 / 4, abs=0.01)


# Superseding


Bring = Callable[[Harness, Request], None]


def to_waiting(harness: Harness, request: Request) -> None:
    """It has not been looked at."""


def to_running(harness: Harness, request: Request) -> None:
    harness.tick()
    harness.step(3)
    assert request.generated


def to_parking(harness: Harness, request: Request) -> None:
    to_running(harness, request)
    harness.submit(1, prompt="urgent")
    harness.tick()
    assert request.state is RequestState.PARKING


def to_parked(harness: Harness, request: Request) -> None:
    to_parking(harness, request)
    harness.step()
    assert request.state is RequestState.WAITING


@pytest.mark.parametrize("bring", [to_waiting, to_running, to_parking, to_parked])
def test_a_newer_request_ends_the_older_one_wherever_it_is(start: Start, bring: Bring) -> None:
    harness = start([1], limit=LIMIT, limits={ME: TenantLimit(concurrent=3)})
    older = harness.submit(5, prompt="older", max_tokens=20, tenant=ME, supersede="editor")
    bring(harness, older)
    others = [
        harness.submit(5, tenant="you", supersede="editor"),
        harness.submit(5, tenant=ME, supersede="terminal"),
        harness.submit(5, tenant=ME),
    ]
    newer = harness.submit(5, prompt="newer", tenant=ME, supersede="editor")
    error = error_of(older)
    assert isinstance(error, SupersededError)
    assert error.newer == newer.id
    assert not any(other.delivery.outcome for other in others)
    harness.finish()
    assert all(result_of(request) for request in [newer, *others])
    assert harness.scheduler.counters.cancelled == 1


def test_one_that_has_ended_is_not_replaced(start: Start) -> None:
    harness = start([1], limit=LIMIT)
    first = harness.submit(tenant=ME, supersede="editor")
    harness.run()
    second = harness.submit(tenant=ME, supersede="editor", stop=[spoken("prompt", 2)])
    harness.tick()
    while second.state is not RequestState.LEAVING:
        harness.step()
    third = harness.submit(tenant=ME, supersede="editor")
    harness.finish()
    assert all(result_of(request) for request in (first, second, third))


def test_the_slot_and_the_tokens_of_the_older_one_are_the_newer_ones(start: Start) -> None:
    limit = TenantLimit(concurrent=1, tokens_per_minute=PER_MINUTE)
    harness = busy(start, max_waiting_tokens=100, limits={ME: limit})
    for _ in range(5):
        harness.submit(prompt="x" * 60, max_tokens=160, tenant=ME, supersede="editor")
    assert [request.delivery.outcome is None for request in harness.requests[1:]] == [False] * 4 + [True]
    harness.finish()


def test_a_newer_one_that_is_refused_stands_for_nothing(start: Start) -> None:
    harness = busy(start, max_waiting_tokens=20)
    older = harness.submit(prompt="x" * 10, tenant=ME, supersede="editor")
    other = harness.submit(prompt="x" * 10, tenant="you", supersede="editor")
    with pytest.raises(QueueFullError):
        harness.submit(prompt="x" * 11, tenant=ME, supersede="editor")
    assert isinstance(error_of(older), SupersededError), "nobody wants it any more"
    newest = harness.submit(prompt="x" * 10, tenant=ME, supersede="editor")
    harness.finish()
    assert result_of(other)
    assert result_of(newest)

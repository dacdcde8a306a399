"""The states of a request, and how its text reaches whoever waits for it."""

from __future__ import annotations

import itertools

import anyio
import pytest

from llamalane.errors import RequestCancelledError
from llamalane.scheduler.delivery import Delivery
from llamalane.scheduler.request import RequestState
from tests.scheduler.building import RequestMaker

ALLOWED = {
    ("waiting", "running"),
    ("waiting", "done"),
    ("running", "waiting"),
    ("running", "parking"),
    ("parking", "waiting"),
    ("parking", "leaving"),
    ("parking", "done"),
    ("waiting", "parking"),
    ("running", "leaving"),
    ("running", "done"),
    ("leaving", "done"),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(RequestState, repeat=2)))
def test_only_the_steps_of_a_request_s_life_are_allowed(before: RequestState, after: RequestState) -> None:
    request = RequestMaker().make()
    request.state = before
    if (before.value, after.value) in ALLOWED:
        request.move(after)
        assert request.state is after
    else:
        with pytest.raises(RuntimeError, match=f"{request.id}.*{before.value}.*{after.value}"):
            request.move(after)
        assert request.state is before


@pytest.mark.anyio
async def test_texts_are_taken_together_and_once() -> None:
    delivery = Delivery()
    assert delivery.take_nowait() == ""
    for text in ("one ", "", "two"):
        delivery.put(text)
    await delivery.wait()
    assert delivery.take_nowait() == "one two"
    assert delivery.take_nowait() == ""


@pytest.mark.anyio
async def test_no_text_is_no_news() -> None:
    delivery = Delivery()
    delivery.put("")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await delivery.wait()
    assert scope.cancelled_caught


@pytest.mark.anyio
async def test_the_first_outcome_counts() -> None:
    delivery = Delivery()
    first, second = RequestCancelledError("first"), RequestCancelledError("second")
    delivery.close(first)
    delivery.close(second)
    assert await delivery.wait_closed() is delivery.outcome is first
    await delivery.wait()


@pytest.mark.anyio
async def test_text_wakes_readers_and_the_outcome_everybody() -> None:
    delivery = Delivery()
    log: list[str] = []

    async def read() -> None:
        while delivery.outcome is None:
            await delivery.wait()
            log.append(delivery.take_nowait())

    async def wait() -> None:
        await delivery.wait_closed()
        log.append("closed")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(wait)
        tasks.start_soon(wait)
        for text in ("a", "b"):
            await anyio.wait_all_tasks_blocked()
            delivery.put(text)
        await anyio.wait_all_tasks_blocked()
        assert log == ["a", "b"]
        delivery.close(RequestCancelledError("over"))
    assert sorted(log[2:]) == ["", "closed", "closed"]

"""The scheduler loop sleeps until somebody rings, from its own thread or from another one."""

from __future__ import annotations

import math
import threading

import anyio
import pytest

from llamalane.scheduler.doorbell import Doorbell


@pytest.mark.anyio
async def test_a_ring_wakes_the_loop() -> None:
    doorbell = Doorbell()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(doorbell.wait, None)
        await anyio.wait_all_tasks_blocked()
        doorbell.ring()


@pytest.mark.anyio
async def test_a_ring_before_the_wait_is_not_lost() -> None:
    doorbell = Doorbell()
    doorbell.ring()
    doorbell.ring()
    await doorbell.wait(None)
    # And both counted as one.
    with anyio.CancelScope() as scope:
        scope.cancel()
        await doorbell.wait(None)
    assert scope.cancelled_caught


@pytest.mark.anyio
async def test_a_ring_from_another_thread_wakes_the_loop() -> None:
    doorbell = Doorbell()
    for _ in range(3):  # it can be rung again
        threads = [threading.Thread(target=doorbell.ring_from_thread) for _ in range(4)]
        for thread in threads:
            thread.start()
        await doorbell.wait(None)
        for thread in threads:
            thread.join()
        await anyio.wait_all_tasks_blocked()


@pytest.mark.anyio
@pytest.mark.parametrize("seconds", [0.0, 0.001])
async def test_the_wait_ends_with_its_time(seconds: float) -> None:
    await Doorbell().wait(seconds)


@pytest.mark.anyio
async def test_a_wait_may_have_no_end() -> None:
    doorbell = Doorbell()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(doorbell.wait, math.inf)
        await anyio.wait_all_tasks_blocked()
        doorbell.ring_from_thread()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ringing_after_the_event_loop_has_ended_does_nothing(backend: str) -> None:
    async def make() -> Doorbell:
        return Doorbell()

    doorbell = anyio.run(make, backend=backend)
    doorbell.ring_from_thread()
    doorbell.ring_from_thread()

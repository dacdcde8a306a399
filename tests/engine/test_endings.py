"""Requests that are cancelled, come too late, or find the queue full."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from llamalane.errors import DeadlineExceededError, QueueFullError, RequestCancelledError
from llamalane.scheduler import EventKind, RequestHandle, RequestState, Result
from tests.engine.conftest import MakeEngine
from tests.engine.running import Follower, Gate, greedy, intercepted

pytestmark = pytest.mark.anyio

PROMPT = "the quick brown fox jumps over the lazy dog"
SMALL_STEPS = 16
"""So few tokens a step that the prompt needs several."""

Bring = Callable[[RequestHandle, Gate, Follower], Awaitable[None]]


async def to_planned(handle: RequestHandle, gate: Gate, follower: Follower) -> None:
    await follower.wait_for(EventKind.ADMITTED, handle.id)


async def to_prefill(handle: RequestHandle, gate: Gate, follower: Follower) -> None:
    gate.let(1)
    await follower.wait_for(EventKind.STEP, times=1)
    assert follower.count(EventKind.STARTED, handle.id) == 1
    assert handle._request.first_token_at is None


async def to_decoding(handle: RequestHandle, gate: Gate, follower: Follower) -> None:
    gate.let(7)
    await follower.wait_for(EventKind.STEP, times=7)
    assert handle._request.generated


STATES = {"planned": to_planned, "prefill": to_prefill, "decoding": to_decoding}
in_every_running_state = pytest.mark.parametrize("bring", STATES.values(), ids=STATES)


@in_every_running_state
async def test_a_running_request_can_be_cancelled(make_engine: MakeEngine, bring: Bring) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=1, max_step_tokens=SMALL_STEPS, observer=follower, open_context=intercepted(gate.pass_through)
    ) as engine:
        with gate:
            handle = await engine.submit(PROMPT, sampling=greedy(100))
            await bring(handle, gate, follower)
            handle.cancel()
            with pytest.raises(RequestCancelledError):
                await handle
            with pytest.raises(RequestCancelledError):
                async for _ in handle:
                    pass
            handle.cancel()
        again = await engine.generate(PROMPT, sampling=greedy(5), tenant="another")
        fresh = await engine.generate(PROMPT, sampling=greedy(5), tenant="a third")
        assert handle.state is RequestState.DONE
        assert engine.stats().counters.cancelled == 1
    assert again.text == fresh.text


async def test_a_waiting_request_can_be_cancelled(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(places=1, observer=follower, open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            running = await engine.submit(PROMPT, sampling=greedy(4))
            await follower.wait_for(EventKind.ADMITTED, running.id)
            handle = await engine.submit(PROMPT, sampling=greedy(4))
            handle.cancel()
            assert handle.state is RequestState.DONE, "it needs no lane to leave the queue"
            with pytest.raises(RequestCancelledError):
                await handle
        assert len((await running).tokens) == 4
    assert follower.count(EventKind.ADMITTED) == 1


async def test_a_finished_request_cannot_be_cancelled(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        handle = await engine.submit(PROMPT, sampling=greedy(4))
        result = await handle
        handle.cancel()
        assert await handle is result
        assert engine.stats().counters.cancelled == 0


async def test_cancelling_wakes_everyone_who_waits(make_engine: MakeEngine) -> None:
    gate = Gate()
    woken: list[str] = []
    async with make_engine(open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            handle = await engine.submit(PROMPT, sampling=greedy(4))

            async def wait() -> None:
                with pytest.raises(RequestCancelledError):
                    await handle
                woken.append("awaiting")

            async def iterate() -> None:
                with pytest.raises(RequestCancelledError):
                    async for _ in handle:
                        pass
                woken.append("iterating")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                tasks.start_soon(iterate)
                await anyio.wait_all_tasks_blocked()
                handle.cancel()
    assert sorted(woken) == ["awaiting", "iterating"]


@pytest.mark.parametrize("chat", [False, True])
async def test_cancelling_the_task_cancels_its_request(make_engine: MakeEngine, chat: bool) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(places=1, observer=follower, open_context=intercepted(gate.pass_through)) as engine:

        async def ask() -> Result:
            if chat:
                return await engine.chat([{"role": "user", "content": "Hello"}], sampling=greedy(100))
            return await engine.generate(PROMPT, sampling=greedy(100))

        with gate:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await follower.wait_for(EventKind.ADMITTED)
                tasks.cancel_scope.cancel()
            assert follower.count(EventKind.ENDED) == 1
            assert engine.stats().counters.cancelled == 1
        assert (await engine.generate(PROMPT, sampling=greedy(2))).text


async def test_giving_up_waiting_for_a_handle_does_not_cancel_its_request(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(observer=follower, open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            handle = await engine.submit(PROMPT, sampling=greedy(4))
            with anyio.CancelScope() as scope:
                scope.cancel()
                await handle
            assert scope.cancelled_caught
        assert len((await handle).tokens) == 4


@pytest.mark.parametrize("waiting", [False, True])
async def test_a_deadline_ends_a_request_wherever_it_is(make_engine: MakeEngine, waiting: bool) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(places=1, observer=follower, open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            if waiting:
                await engine.submit(PROMPT, sampling=greedy(2))
            handle = await engine.submit(PROMPT, sampling=greedy(100), deadline=0.02)
            with pytest.raises(DeadlineExceededError, match=r"0\.02 s") as caught:
                await handle
            assert caught.value.seconds == 0.02
            with pytest.raises(DeadlineExceededError):
                async for _ in handle:
                    pass
            assert engine.stats().counters.expired == 1
        assert (await engine.generate(PROMPT, sampling=greedy(2), deadline=1000)).text


async def test_a_deadline_in_time_changes_nothing(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        with_deadline = await engine.generate(PROMPT, sampling=greedy(4), deadline=1000)
        without = await engine.generate(PROMPT, sampling=greedy(4), tenant="another")
    assert with_deadline.text == without.text


async def test_a_full_queue_refuses_at_once(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=1,
        queue={"max_requests": 2, "max_tokens": 60},
        observer=follower,
        open_context=intercepted(gate.pass_through),
    ) as engine:
        with gate:
            handles = [await engine.submit([5] * 10, sampling=greedy(2))]
            await follower.wait_for(EventKind.ADMITTED)
            handles.append(await engine.submit([5] * 40, sampling=greedy(2)))
            with pytest.raises(QueueFullError, match="60 tokens") as caught:
                await engine.submit([5] * 21)
            assert (caught.value.reason, caught.value.limit) == ("tokens", 60)
            handles.append(engine.submit_tokens_nowait([5] * 20, sampling=greedy(2)))
            for submit in (engine.submit, engine.generate):
                with pytest.raises(QueueFullError, match="2 requests") as caught:
                    await submit(PROMPT)
                assert caught.value.retry_after > 0
            with pytest.raises(QueueFullError):
                engine.submit_tokens_nowait([5])
            with pytest.raises(QueueFullError):
                await engine.chat([{"role": "user", "content": "Hello"}])
            assert engine.stats().counters.rejected == {"tokens": 1, "requests": 4}
        for handle in handles:
            assert len((await handle).tokens) == 2
        assert await engine.generate(PROMPT, sampling=greedy(2))

"""What an administrator does to an engine that runs: cancel, re-prioritise, pause lanes, change limits."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from llamalane.errors import (
    EngineClosedError,
    InvalidPriorityError,
    PoolError,
    QueueFullError,
    RequestCancelledError,
    TenantLimitError,
)
from llamalane.ids import RequestId
from llamalane.scheduler import EventKind, RequestState, SchedulerConfig
from tests.engine.conftest import MakeEngine
from tests.engine.running import Follower, Gate, config_for, greedy, intercepted

pytestmark = pytest.mark.anyio

NOBODY = RequestId("nobody")


async def test_a_request_is_cancelled_by_its_id_whether_it_waits_or_runs(make_engine: MakeEngine) -> None:
    with Gate() as gate:
        async with make_engine(places=1, open_context=intercepted(gate.pass_through)) as engine:
            running = await engine.submit("run", sampling=greedy(200))
            waiting = await engine.submit("wait", sampling=greedy(200))
            other = await engine.submit("other", sampling=greedy(4))
            for handle in (running, waiting):
                engine.cancel(handle.id)
                with pytest.raises(RequestCancelledError):
                    await handle
                with pytest.raises(KeyError):
                    engine.cancel(handle.id)
            gate.open()
            assert (await other).usage.completion_tokens == 4
            with pytest.raises(KeyError):
                engine.cancel(NOBODY)


async def test_a_new_priority_decides_who_is_next(make_engine: MakeEngine) -> None:
    follower = Follower()
    with Gate() as gate:
        async with make_engine(
            places=1, observer=follower, open_context=intercepted(gate.pass_through), guaranteed_share=0
        ) as engine:
            first = await engine.submit("first", sampling=greedy(4), priority=1)
            await follower.wait_for(EventKind.ADMITTED, first.id)
            batch = await engine.submit("batch", sampling=greedy(4), priority="batch")
            chat = await engine.submit("chat", sampling=greedy(4), priority=2)
            engine.set_priority(batch.id, 1)
            assert batch.level == 1
            assert [one.request for one in engine.queue()][:2] == [batch.id, chat.id]
            gate.open()
            for handle in (first, batch, chat):
                await handle
    admitted = [event.request for event in follower.events if event.kind is EventKind.ADMITTED]
    assert admitted == [first.id, batch.id, chat.id]
    assert EventKind.PRIORITIZED in follower.kinds(batch.id)


async def test_a_running_request_goes_on_at_its_new_priority_with_the_same_output(make_engine: MakeEngine) -> None:
    async with make_engine(places=2) as engine:
        alone = await engine.generate("once", sampling=greedy(60))
        handle = await engine.submit("once", sampling=greedy(60), priority=5)
        other = await engine.submit("other", sampling=greedy(60), priority=3)
        async for _ in handle:
            break
        engine.set_priority(handle.id, "interactive")
        result = await handle
        await other
    assert result.tokens == alone.tokens
    assert result.level == 1


async def test_a_priority_that_is_none_and_an_unknown_request_are_refused(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        handle = await engine.submit("x", sampling=greedy(4))
        with pytest.raises(InvalidPriorityError):
            engine.set_priority(handle.id, "sometime")
        with pytest.raises(KeyError):
            engine.set_priority(NOBODY, 1)
        await handle


async def test_pausing_a_lane_under_load_loses_nothing(make_engine: MakeEngine) -> None:
    async with make_engine(lanes=2, places=2) as engine:
        handles = [await engine.submit(f"request {number}", sampling=greedy(12)) for number in range(16)]
        engine.pause_lane("lane-0")
        paused = {lane.name: lane.paused for lane in engine.stats().lanes}
        assert paused == {"lane-0": True, "lane-1": False}
        for handle in handles[:8]:
            await handle
        late = [await engine.submit(f"late {number}", sampling=greedy(12)) for number in range(4)]
        results = [await handle for handle in late]
        assert {result.timings.lane for result in results} == {"lane-1"}
        engine.resume_lane("lane-0")
        assert not any(lane.paused for lane in engine.stats().lanes)
        for handle in handles:
            assert (await handle).usage.completion_tokens == 12


async def test_with_every_lane_paused_requests_wait_and_resuming_lets_them_go_on(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        engine.pause_lane("lane-0")
        engine.pause_lane("lane-0")
        handle = await engine.submit("x", sampling=greedy(4))
        await anyio.lowlevel.checkpoint()
        assert engine.explain(handle.id).state is RequestState.WAITING
        assert "paused" in engine.explain(handle.id).reason
        engine.resume_lane("lane-0")
        assert (await handle).usage.completion_tokens == 4
        with pytest.raises(PoolError, match="no lane is called 'gpu'; there are lane-0"):
            engine.pause_lane("gpu")
        with pytest.raises(PoolError, match="no lane is called 'gpu'"):
            engine.resume_lane("gpu")


async def test_an_engine_can_close_while_a_lane_is_paused(make_engine: MakeEngine) -> None:
    async with make_engine(drain_timeout=0) as engine:
        engine.pause_lane("lane-0")
        handle = await engine.submit("x", sampling=greedy(4))
        with anyio.fail_after(30):
            await engine.drain()
        with pytest.raises(EngineClosedError):
            await handle
        engine.resume_lane("lane-0")


async def test_limits_and_bounds_change_while_the_engine_runs(make_engine: MakeEngine) -> None:
    follower = Follower()
    with Gate() as gate:
        async with make_engine(places=1, observer=follower, open_context=intercepted(gate.pass_through)) as engine:
            handles = [await engine.submit("x", sampling=greedy(2), tenant="a") for _ in range(3)]
            await follower.wait_for(EventKind.ADMITTED)
            old = engine.config
            changes = engine.reload(
                old.model_copy(
                    update={
                        "scheduler": SchedulerConfig.model_validate(
                            {"tenants": {"a": {"concurrent": 3}}, "queue": {"max_requests": 4}, "ceiling": 1}
                        )
                    }
                )
            )
            assert set(changes.applied) == {"scheduler.tenants", "scheduler.queue.max_requests"}
            assert set(changes.restart) == {"scheduler.ceiling"}
            assert engine.config.scheduler.ceiling == old.scheduler.ceiling
            assert engine.config.scheduler.queue.max_requests == 4
            with pytest.raises(TenantLimitError):
                await engine.submit("x", tenant="a")
            handles += [await engine.submit("x", sampling=greedy(2), tenant="b") for _ in range(2)]
            with pytest.raises(QueueFullError):
                await engine.submit("x", tenant="b")
            gate.open()
            for handle in handles:
                await handle


async def test_a_salt_keeps_a_tenants_prompts_apart(make_engine: MakeEngine) -> None:
    prompt = "the same prompt, long enough to be worth sharing " * 4
    async with make_engine() as engine:
        cached = []
        for salt in ("", "", "bob", "bob", "eve"):
            result = await engine.generate(prompt, sampling=greedy(2), tenant="app", cache_salt=salt)
            cached.append(result.usage.cached_tokens > 0)
        assert cached == [False, True, False, True, False]


async def test_an_engine_that_does_not_run_says_so(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for method in (engine.cancel, engine.pause_lane, engine.resume_lane):
        with pytest.raises(EngineClosedError):
            method(NOBODY)
    with pytest.raises(EngineClosedError):
        engine.set_priority(NOBODY, 1)
    assert engine.reload(config_for(engine.config.models[0].path, target_itl=0.5)).applied == ("scheduler.target_itl",)
    assert engine.config.scheduler.target_itl == 0.5

"""More comes than an engine can serve: who is turned away or out, and what it tells of those who wait."""

from __future__ import annotations

import pytest

from llamalane.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    QueueFullError,
    RequestShedError,
    SupersededError,
    TenantLimitError,
)
from llamalane.ids import RequestId
from llamalane.scheduler import EventKind, RequestState
from tests.engine.conftest import MakeEngine
from tests.engine.running import Follower, Gate, greedy, intercepted

pytestmark = pytest.mark.anyio

PROMPT = [5] * 10


async def test_a_full_queue_turns_out_the_less_urgent(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=1,
        queue={"max_requests": 2, "overflow": "shed"},
        observer=follower,
        open_context=intercepted(gate.pass_through),
    ) as engine:
        with gate:
            running = await engine.submit(PROMPT, sampling=greedy(3), priority="interactive")
            await follower.wait_for(EventKind.ADMITTED, running.id)
            first, last = [await engine.submit(PROMPT, sampling=greedy(3), priority="batch") for _ in range(2)]
            with pytest.raises(QueueFullError):
                await engine.submit(PROMPT, priority="batch")
            agent = await engine.submit(PROMPT, sampling=greedy(3), priority="agent")
            with pytest.raises(RequestShedError) as caught:
                await last
            assert caught.value.retry_after > 0
            assert last.state is RequestState.DONE
            assert first.state is RequestState.WAITING
            assert engine.stats().counters.rejected == {"requests": 1, "shed": 1}
        for handle in (running, first, agent):
            assert len((await handle).tokens) == 3


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_newer_request_with_the_same_key_ends_the_older_one(make_engine: MakeEngine, is_running: bool) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(places=1, observer=follower, open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            if not is_running:
                other = await engine.submit(PROMPT, sampling=greedy(3), tenant="me")
                await follower.wait_for(EventKind.ADMITTED, other.id)
            older = await engine.submit(PROMPT, sampling=greedy(100), tenant="me", supersede="editor")
            if is_running:
                gate.let(3)
                await follower.wait_for(EventKind.STEP, times=3)
            theirs = await engine.submit(PROMPT, sampling=greedy(3), tenant="you", supersede="editor")
            newer = await engine.submit(PROMPT, sampling=greedy(3), tenant="me", supersede="editor")
            with pytest.raises(SupersededError) as caught:
                await older
            assert caught.value.newer == newer.id
        for handle in (theirs, newer):
            assert len((await handle).tokens) == 3
        assert engine.stats().counters.cancelled == 1


async def test_a_tenant_has_so_many_requests_at_once(make_engine: MakeEngine) -> None:
    gate = Gate()
    async with make_engine(
        tenants={"me": {"concurrent": 2}},
        other_tenants={"concurrent": 1},
        open_context=intercepted(gate.pass_through),
    ) as engine:
        with gate:
            handles = [await engine.submit(PROMPT, sampling=greedy(3), tenant=tenant) for tenant in ("me", "me", "you")]
            for tenant in ("me", "you"):
                with pytest.raises(TenantLimitError) as caught:
                    await engine.submit(PROMPT, tenant=tenant)
                assert caught.value.retry_after > 0
            assert engine.stats().counters.rejected == {"concurrent": 2}
            handles[0].cancel()
            handles.append(await engine.submit(PROMPT, sampling=greedy(3), tenant="me"))
        for handle in handles[1:]:
            assert len((await handle).tokens) == 3
        assert await engine.generate(PROMPT, sampling=greedy(3), tenant="you")


async def test_a_tenant_has_so_many_tokens_a_minute(make_engine: MakeEngine) -> None:
    async with make_engine(other_tenants={"tokens_per_minute": 100}) as engine:
        await engine.generate(PROMPT, sampling=greedy(60), tenant="me")
        with pytest.raises(TenantLimitError) as caught:
            await engine.submit(PROMPT, sampling=greedy(90), tenant="me")
        assert 0 < caught.value.retry_after <= 60
        with pytest.raises(InvalidRequestError, match="101 tokens"):
            await engine.submit(PROMPT, sampling=greedy(91), tenant="you")
        assert await engine.generate(PROMPT, sampling=greedy(90), tenant="you")
        assert engine.stats().counters.rejected == {"tokens_per_minute": 1}


async def test_a_deadline_that_cannot_be_met_is_refused_once_the_speed_is_known(make_engine: MakeEngine) -> None:
    gate = Gate()
    async with make_engine(open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            hopeful = await engine.submit(PROMPT, sampling=greedy(200), deadline=0.2)
            with pytest.raises(DeadlineExceededError):
                await hopeful
        await engine.generate(PROMPT, sampling=greedy(8), tenant="another")
        with pytest.raises(DeadlineExceededError):
            await engine.submit(PROMPT, sampling=greedy(200), deadline=1e-4)
        assert engine.stats().counters.expired == 1
        assert engine.stats().counters.rejected == {"deadline": 1}
        assert await engine.generate(PROMPT, sampling=greedy(200), deadline=1000)


async def test_it_tells_of_each_request_where_it_is_and_why(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(places=1, observer=follower, open_context=intercepted(gate.pass_through)) as engine:
        assert engine.queue() == []
        with gate:
            running = await engine.submit(PROMPT, sampling=greedy(100), priority="interactive")
            gate.let(3)
            await follower.wait_for(EventKind.STEP, times=3)
            batch = await engine.submit(PROMPT, sampling=greedy(3), priority="batch")
            agent = await engine.submit(PROMPT, sampling=greedy(3), priority="agent")
            assert [(told.request, told.position) for told in engine.queue()] == [
                (agent.id, 0),
                (batch.id, 1),
                (running.id, None),
            ]
            told = engine.explain(running.id)
            assert (told.state, told.lane, told.reason) == (RequestState.RUNNING, "lane-0", "it is running")
            assert (told.prompt_tokens, told.generated_tokens) == (10, 3)
            assert [name for name, _ in told.events] == ["accepted", "admitted", "started"]
            told = engine.explain(batch.id)
            assert told.reason.startswith("1 more urgent or older")
            assert told.estimated_start is not None
            assert told.estimated_start > 0
            with pytest.raises(KeyError):
                engine.explain(RequestId("never seen"))
            running.cancel()
        await batch
        await agent
        with pytest.raises(KeyError):
            engine.explain(batch.id)
        assert engine.queue() == []

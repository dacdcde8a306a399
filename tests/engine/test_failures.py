"""Contexts that fail under the engine."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection

import pytest

from llamalane.errors import DecodeError, EngineClosedError, LaneDownError, RequestFailedError
from llamalane.scheduler import Engine, EventKind, RequestState, Result, SamplingParameters
from llamalane.scheduler.assembly import OpenContext
from llamalane.streams.lane import StepContext
from llamalane.streams.llama import Context, ContextOptions, Model
from tests.engine.conftest import MakeEngine
from tests.engine.running import Follower, greedy, intercepted, seeded
from tests.engine.test_lanes import as_if_each_lane_had_its_cores

pytestmark = pytest.mark.anyio

PROMPTS = [f"prompt number {number}" for number in range(6)]


def failing_at(steps: Collection[int], error: Exception) -> OpenContext:
    """Open contexts of which those steps fail, counted over all contexts from 1."""
    count = 0
    lock = threading.Lock()

    def before_step() -> None:
        nonlocal count
        with lock:
            count += 1
            number = count
        if number in steps:
            raise error

    return intercepted(before_step)


async def answers(engine: Engine, sampling: SamplingParameters) -> list[Result]:
    handles = [await engine.submit(prompt, sampling=sampling) for prompt in PROMPTS]
    return [await handle for handle in handles]


@pytest.mark.parametrize("step", [1, 2, 5, 19, 30])
@pytest.mark.parametrize("code", [-3, -2])
async def test_a_failure_changes_no_output(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture, step: int, code: int
) -> None:
    async with make_engine() as engine:
        undisturbed = await answers(engine, greedy(20))
    follower = Follower()
    async with make_engine(observer=follower, open_context=failing_at({step}, DecodeError(code))) as engine:
        disturbed = await answers(engine, greedy(20))
        statistics = engine.stats()
    assert [result.text for result in disturbed] == [result.text for result in undisturbed]
    assert [result.tokens for result in disturbed] == [result.tokens for result in undisturbed]
    assert follower.count(EventKind.LANE_FAILED) == follower.count(EventKind.LANE_READY) == 1
    restarts = follower.count(EventKind.REQUEUED)
    assert restarts == statistics.counters.restarts == sum(result.timings.restarts for result in disturbed) > 0
    assert statistics.lanes[0].failures == 1
    assert statistics.lanes[0].serving
    assert f"llama_decode returned {code}" in caplog.text


async def test_a_drawn_output_goes_on_with_the_same_numbers(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        undisturbed = await answers(engine, seeded(11, 20))
    async with make_engine(open_context=failing_at({4, 12}, DecodeError(-3))) as engine:
        disturbed = await answers(engine, seeded(11, 20))
    assert [result.tokens for result in disturbed] == [result.tokens for result in undisturbed]


async def test_whatever_goes_wrong_is_a_failure_of_the_lane(make_engine: MakeEngine) -> None:
    async with make_engine(open_context=failing_at({3}, MemoryError("no room"))) as engine:
        results = await answers(engine, greedy(8))
        assert engine.stats().lanes[0].failures == 1
    assert all(len(result.tokens) == 8 for result in results)


async def test_text_already_delivered_does_not_come_again(make_engine: MakeEngine) -> None:
    async with make_engine(open_context=failing_at({10}, DecodeError(-3))) as engine:
        handle = await engine.submit(PROMPTS[0], sampling=greedy(20))
        pieces = [piece async for piece in handle]
        result = await handle
    assert result.timings.restarts == 1
    assert "".join(pieces) == result.text


async def test_failures_that_are_not_in_a_row_do_not_add_up(make_engine: MakeEngine) -> None:
    async with make_engine(open_context=failing_at({2, 5, 8, 11}, DecodeError(-3))) as engine:
        for prompt in PROMPTS[:4]:  # none of them meets three failures
            result = await engine.generate(prompt, sampling=greedy(2))
            assert len(result.tokens) == 2
        assert engine.stats().lanes[0].failures >= 2
        assert not engine.down


async def test_a_request_under_which_its_lane_fails_too_often_is_given_up(make_engine: MakeEngine) -> None:
    async with make_engine(places=1, open_context=failing_at({2, 4, 6}, DecodeError(-3))) as engine:
        with pytest.raises(RequestFailedError, match="3 times") as caught:
            await engine.generate(PROMPTS[0], sampling=greedy(20))
        assert "-3" in str(caught.value)
        assert not engine.down
        assert len((await engine.generate(PROMPTS[1], sampling=greedy(8))).tokens) == 8


async def test_after_three_failures_in_a_row_the_lane_is_out(make_engine: MakeEngine) -> None:
    follower = Follower()
    async with make_engine(
        places=2, observer=follower, open_context=failing_at(range(5, 100), DecodeError(-3))
    ) as engine:
        handles = [await engine.submit(prompt, sampling=greedy(20)) for prompt in PROMPTS]
        for handle in handles:
            with pytest.raises(LaneDownError):
                await handle
        assert engine.down
        lane = engine.stats().lanes[0]
        assert (lane.failures, lane.serving, lane.down) == (3, False, True)
        assert engine.stats().free_places == 0
        with pytest.raises(LaneDownError):
            await engine.generate(PROMPTS[0])
        with pytest.raises(LaneDownError):
            engine.submit_tokens_nowait([5])
        await engine.drain()
        with pytest.raises(EngineClosedError):
            engine.submit_tokens_nowait([5])
    assert follower.count(EventKind.LANE_FAILED) == 3
    assert follower.count(EventKind.ENDED) == len(PROMPTS)


async def test_a_context_that_cannot_be_opened_again_counts_as_a_failure(make_engine: MakeEngine) -> None:
    opened = 0

    def open_context(model: Model, options: ContextOptions) -> StepContext:
        nonlocal opened
        opened += 1
        if opened == 2:
            raise MemoryError("no room for the second one")
        return failing_at({3}, DecodeError(-3))(model, options) if opened == 1 else Context(model, options)

    async with make_engine(open_context=open_context) as engine:
        results = await answers(engine, greedy(8))
        assert engine.stats().lanes[0].failures == 2
        assert engine.stats().lanes[0].serving
    assert opened == 3
    assert all(len(result.tokens) == 8 for result in results)


async def test_the_other_lanes_serve_on(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_each_lane_had_its_cores(monkeypatch)

    def break_the_first_lane() -> None:
        if threading.current_thread().name == "llamalane-lane-0":
            raise DecodeError(-3)

    async with make_engine(lanes=3, places=1, open_context=intercepted(break_the_first_lane)) as engine:
        handles = [await engine.submit(prompt, sampling=greedy(8)) for prompt in PROMPTS]
        for handle in handles:
            try:
                assert len((await handle).tokens) == 8
            except RequestFailedError:  # it met that lane each time
                assert handle.state is RequestState.DONE
        tenants = itertools.count()
        while not engine.stats().lanes[0].down:  # it fails only while it has work, so nothing may be cached elsewhere
            await engine.generate(PROMPTS[0], sampling=greedy(1), tenant=f"tenant {next(tenants)}")
        assert [lane.down for lane in engine.stats().lanes] == [True, False, False]
        assert not engine.down
        assert len((await engine.generate(PROMPTS[0], sampling=greedy(8))).tokens) == 8

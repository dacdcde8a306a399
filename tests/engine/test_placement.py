"""One queue for several lanes: where a request starts, on CPU lanes and on lanes of several GPUs."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from llamalane.api import create_app
from llamalane.errors import DecodeError
from llamalane.scheduler import EventKind
from llamalane.scheduler.assembly import OpenContext
from llamalane.streams.lane import StepContext
from llamalane.streams.llama import Context, ContextOptions, Model
from tests.api.asgi import client_of
from tests.engine.conftest import MakeEngine
from tests.engine.running import (
    Follower,
    Gate,
    InterceptedContext,
    WatchedEngine,
    config_for,
    greedy,
    intercepted,
)
from tests.engine.test_lanes import LANES, as_if_each_lane_had_its_cores
from tests.streams.llama.cpu_as_gpu import as_if_there_were

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _enough_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_each_lane_had_its_cores(monkeypatch)


@pytest.mark.parametrize("measured", [False, True])
async def test_requests_are_spread_over_the_lanes(make_engine: MakeEngine, measured: bool) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(
        lanes=LANES, places=4, observer=follower, open_context=intercepted(gate.pass_through)
    ) as engine:
        with gate:
            if measured:  # by one lane, for all of them
                gate.let(8)
                await engine.generate("something else", sampling=greedy(8), tenant="other")
            before = follower.count(EventKind.ADMITTED)
            handles = [await engine.submit(f"prompt {number}", sampling=greedy(4)) for number in range(2 * LANES)]
            await follower.wait_for(EventKind.ADMITTED, times=before + 2 * LANES)
            assert [lane.running for lane in engine.stats().lanes] == [2] * LANES
        for handle in handles:
            await handle


async def test_a_second_turn_goes_to_the_lane_of_the_first_unless_that_is_busy(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    first = [5 + number for number in range(40)]
    async with make_engine(
        lanes=LANES, places=1, observer=follower, open_context=intercepted(gate.pass_through)
    ) as engine:
        with gate:
            gate.let(4)
            home = (await engine.generate(first, sampling=greedy(4))).timings.lane
            turns = [await engine.submit([*first, 60 + turn], sampling=greedy(4)) for turn in range(LANES)]
            await follower.wait_for(EventKind.ADMITTED, times=1 + LANES)
            lanes = [event.lane for event in follower.events if event.kind is EventKind.ADMITTED][1:]
        results = [await turn for turn in turns]
    assert lanes[0] == home
    assert sorted(lanes) == [f"lane-{number}" for number in range(LANES)], "the others do not wait for it"
    assert results[0].usage.cached_tokens == len(first)
    assert [result.usage.cached_tokens for result in results[1:]] == [0] * (LANES - 1)


def failing_on(device: int, before_step: Gate, held: int) -> OpenContext:
    """Open contexts that fail once on one GPU, and wait at a gate before each step on another."""
    fault = threading.Event()

    def open_context(model: Model, options: ContextOptions) -> StepContext:
        def step() -> None:
            if model.options.device == held:
                before_step.pass_through()
            if model.options.device == device and not fault.is_set():
                fault.set()
                raise DecodeError(-3)

        return InterceptedContext(Context(model, options), step)

    return open_context


async def test_a_lane_is_built_anew_while_one_on_another_gpu_computes(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, engines: list[WatchedEngine]
) -> None:
    as_if_there_were(monkeypatch, ["NVIDIA L4"] * 2)
    config = config_for(tiny_model, lanes=2, places=1)
    lanes = [lane.model_copy(update={"device": number}) for number, lane in enumerate(config.streams.lanes)]
    config = config.model_copy(update={"streams": config.streams.model_copy(update={"lanes": lanes})})
    gate, follower = Gate(), Follower()
    engine = WatchedEngine(config, observer=follower, open_context=failing_on(1, gate, held=0))
    engines.append(engine)
    async with engine:
        with gate:
            handles = [await engine.submit(f"prompt {number}", sampling=greedy(4)) for number in range(2)]
            await follower.wait_for(EventKind.LANE_READY)
            assert engine.stats().lanes[0].steps == 0, "it is still in its first step"
        results = [await handle for handle in handles]
    assert Counter(result.timings.lane for result in results).keys() <= {"lane-0", "lane-1"}
    assert sum(result.timings.restarts for result in results) == 1


async def test_requests_of_a_lane_whose_context_cannot_be_opened_again_go_on_elsewhere(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    fault = threading.Event()

    def fail() -> None:
        gate.pass_through()
        if threading.current_thread().name == "llamalane-lane-1":
            fault.set()
            raise DecodeError(-3)

    intercept = intercepted(fail)

    def open_context(model: Model, options: ContextOptions) -> StepContext:
        if fault.is_set():
            raise MemoryError("the device is gone")
        return intercept(model, options)

    async with make_engine(lanes=LANES, places=2, observer=follower, open_context=open_context) as engine:
        with gate:
            handles = [await engine.submit(f"prompt {number}", sampling=greedy(8)) for number in range(2 * LANES)]
            await follower.wait_for(EventKind.ADMITTED, times=2 * LANES)
        results = [await handle for handle in handles]
        assert {result.timings.lane for result in results} == {"lane-0", "lane-2"}
        assert sum(result.timings.restarts for result in results) == 2
        await follower.wait_for(EventKind.LANE_FAILED, times=3)
        assert [lane.down for lane in engine.stats().lanes] == [False, True, False]
        async with client_of(create_app(engine)) as client:
            health = await client.get("/health")
        assert (health.status_code, health.json()) == (200, {"status": "ok", "lanes_down": ["lane-1"]})
        assert (await engine.generate("one more", sampling=greedy(8))).timings.lane != "lane-1"

"""Several lanes on one model: three of them, with four places each."""

from __future__ import annotations

import threading

import pytest

from llamalane.scheduler import EventKind, RequestState, assembly
from llamalane.streams.cores import available_cores
from tests.engine.conftest import MakeEngine
from tests.engine.running import PART, Follower, Gate, greedy, intercepted, lane_threads, seeded

pytestmark = pytest.mark.anyio

LANES, PLACES = 3, 4


def as_if_each_lane_had_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lanes believe that there is a core for each: the machine may have fewer, which is refused."""
    cores = available_cores()
    monkeypatch.setattr(assembly, "available_cores", lambda: (cores * LANES)[: max(LANES, len(cores))])


@pytest.fixture(autouse=True)
def _enough_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_each_lane_had_its_cores(monkeypatch)


async def test_all_places_of_all_lanes_work_at_once(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(
        lanes=LANES, places=PLACES, observer=follower, open_context=intercepted(gate.pass_through)
    ) as engine:
        assert sorted(lane_threads()) == [f"llamalane-lane-{number}" for number in range(LANES)]
        with gate:
            handles = [await engine.submit(f"prompt {number}", sampling=greedy(8)) for number in range(20)]
            await follower.wait_for(EventKind.ADMITTED, times=LANES * PLACES)
            busy = engine.stats()
            assert [lane.running for lane in busy.lanes] == [PLACES] * LANES
            assert busy.free_places == 0
            assert sum(busy.waiting.values()) == 20 - LANES * PLACES
        for handle in handles:
            assert len((await handle).tokens) == 8
        idle = engine.stats()
    assert idle.free_places == idle.places == LANES * PLACES
    assert all(lane.cells == PLACES * PART and lane.steps > 0 for lane in idle.lanes)


@pytest.mark.parametrize("sampling", [greedy(24), seeded(3, 24)], ids=["greedy", "seeded"])
async def test_every_lane_gives_the_same_output(make_engine: MakeEngine, sampling: object) -> None:
    async with make_engine(lanes=LANES, places=PLACES) as engine:
        alone = await engine.generate("the same prompt", sampling=sampling, tenant="alone")  # type: ignore[arg-type]
        handles = [
            await engine.submit("the same prompt", sampling=sampling, tenant=str(number))  # type: ignore[arg-type]
            for number in range(LANES * PLACES)
        ]
        results = [await handle for handle in handles]
    assert {result.text for result in results} == {alone.text}
    assert {result.timings.lane for result in results} == {f"lane-{number}" for number in range(LANES)}


async def test_a_second_turn_goes_to_the_lane_that_holds_the_first(make_engine: MakeEngine) -> None:
    firsts = [[5 + number] * 20 for number in range(6)]
    async with make_engine(lanes=LANES, places=PLACES) as engine:
        handles = [await engine.submit(first, sampling=greedy(8)) for first in firsts]
        results = [await handle for handle in handles]
        assert len({result.timings.lane for result in results}) == LANES
        for first, result in zip(firsts, results, strict=True):
            second = await engine.generate([*first, *result.tokens, 99], sampling=greedy(8))
            assert second.timings.lane == result.timings.lane
            assert second.usage.cached_tokens == len(first) + len(result.tokens) - 1


async def test_a_lane_that_is_held_does_not_hold_the_others(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()

    def hold_the_first_lane() -> None:
        if threading.current_thread().name == "llamalane-lane-0":
            gate.pass_through()

    async with make_engine(
        lanes=LANES, places=PLACES, observer=follower, open_context=intercepted(hold_the_first_lane)
    ) as engine:
        with gate:
            handles = [await engine.submit(f"prompt {number}", sampling=greedy(4)) for number in range(LANES)]
            await follower.wait_for(EventKind.ADMITTED, times=LANES)
            lanes = {event.request: event.lane for event in follower.events if event.kind is EventKind.ADMITTED}
            assert sorted(lanes.values()) == ["lane-0", "lane-1", "lane-2"]
            for handle in handles:
                if lanes[handle.id] != "lane-0":
                    assert len((await handle).tokens) == 4
            assert sum(handle.state is RequestState.DONE for handle in handles) == LANES - 1
        for handle in handles:
            assert len((await handle).tokens) == 4

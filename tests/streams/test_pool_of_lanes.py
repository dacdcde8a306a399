"""The pool with everything that it holds together: three lanes of four places, their regions, and a model."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from llamalane.kvcache import Region, divide
from llamalane.streams import LaneBackend, Lease, SamplingParameters, Stream, StreamPool
from llamalane.streams.gate import Gate
from llamalane.streams.llama import Model
from tests.streams.fakes import stream_options
from tests.streams.lane_rig import OPTIONS, Inbox, Script, open_lane, shortfall, tokens_of
from tests.streams.plans import join, plan

NAMES = ["a", "b", "c"]
ENDLESS = SamplingParameters(temperature=0, seed=0, ignore_eos=True)
ROUNDING = 0.01

pytestmark = pytest.mark.anyio


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def pool(model: Model, script: Script, inbox: Inbox) -> Iterator[StreamPool]:
    gate = Gate()
    plans = iter(divide(3 * OPTIONS.cells, [4] * 3, model.train_context, spare=0))

    def open_one(stream: Stream) -> tuple[LaneBackend, Region]:
        return open_lane(model, script, name=stream.options.name, gate=gate), Region(next(plans))

    pool = StreamPool([stream_options(name) for name in NAMES], open_one)
    pool.start(inbox)
    yield pool
    pool.close()
    assert (script.opened, script.closed) == (3, 3)


def run_all(
    pool: StreamPool, inbox: Inbox, version: int, work: dict[str, tuple[Lease, list[int]]]
) -> dict[str, list[int]]:
    """Run each request on its lease to the end, eight tokens each."""
    for lane in pool.lanes:
        joins = [
            join(name, lease.sequence, prompt, cached=lease.cached, max_tokens=8, sampling=ENDLESS)
            for name, (lease, prompt) in work.items()
            if lease.lane is lane
        ]
        lane.backend.post(plan(version, *joins))
    reports = inbox.reports_until(*work)
    return {name: tokens_of(name, reports) for name in work}


async def test_twelve_conversations_go_on_where_they_were(pool: StreamPool, inbox: Inbox, model: Model) -> None:
    assert (pool.places, pool.limit) == (12, OPTIONS.cells)
    prompts = {f"talk-{i}": [1, 100 + i, *range(60, 70 + i)] for i in range(12)}
    work = {name: (pool.acquire_nowait(prompt, cells=40, scope="me"), prompt) for name, prompt in prompts.items()}
    outputs = run_all(pool, inbox, 1, work)
    history = {}
    for name, (lease, prompt) in work.items():
        assert len(outputs[name]) == 8
        assert shortfall(model, prompt, outputs[name]) < ROUNDING
        history[name] = [*prompt, *outputs[name][:-1]]
        lease.release(history[name])
        pool.check()

    again = {}
    for name in reversed(prompts):
        prompt = [*prompts[name], *outputs[name], 50, 51]
        lease = pool.acquire_nowait(prompt, cells=80, scope="me")
        first, _ = work[name]
        assert (lease.lane, lease.sequence) == (first.lane, first.sequence)
        assert lease.cached == len(history[name])
        again[f"{name} goes on"] = (lease, prompt)
    outputs = run_all(pool, inbox, 2, again)
    for name, (lease, prompt) in again.items():
        assert shortfall(model, prompt, outputs[name]) < ROUNDING
        lease.release()
    pool.check()
    assert (pool.free, pool.leased) == (12, 0)


async def test_each_lane_has_one_thread_of_its_own(pool: StreamPool) -> None:
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("llamalane-")]
    assert sorted(names) == [f"llamalane-{name}" for name in NAMES]


def test_no_thread_is_left_when_one_lane_cannot_open(model: Model) -> None:
    script = Script()

    def open_two(stream: Stream) -> tuple[LaneBackend, Region]:
        if stream.options.name == "c":
            raise OSError("c cannot be opened")
        (region,) = divide(OPTIONS.cells, [4], 0, spare=0)
        return open_lane(model, script, name=stream.options.name), Region(region)

    with pytest.raises(OSError, match="c cannot be opened"):
        StreamPool([stream_options(name) for name in NAMES], open_two)
    assert (script.opened, script.closed) == (2, 2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("llamalane-")]

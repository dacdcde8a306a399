"""A request that had to give way goes on as if it never had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from llamalane.errors import RequestCancelledError
from llamalane.kvcache import Layout
from llamalane.scheduler import EventKind, RequestHandle, RequestState, SamplingParameters
from llamalane.streams import parts
from llamalane.streams.lane import StepContext
from llamalane.streams.llama import Context, ContextOptions, Model
from tests.engine.conftest import MakeEngine
from tests.engine.running import EXACT, Follower, Gate, WatchedEngine, greedy, intercepted, seeded
from tests.engine.teacher_forced import Judge, Solo, Written
from tests.engine.test_same_output import PROMPTS as NINE_PROMPTS

pytestmark = pytest.mark.anyio

PROMPTS = NINE_PROMPTS[:8]
TOKENS = 40
PENALTIES = {"repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1, "repeat_last_n": 24}
SAMPLINGS = {
    "greedy": greedy(TOKENS),
    "penalties": greedy(TOKENS, **PENALTIES),
    "seeded": seeded(7, TOKENS),
}
AT_MOST_TOLERATED = 0.01


async def written(handle: RequestHandle) -> Written:
    return Written(tuple(handle._request.tokens), (await handle).tokens)


def judge(model: Path, sampling: SamplingParameters, texts: list[Written]) -> None:
    with Solo(model) as solo:
        judge = Judge(solo, sampling)
        tolerance = judge.tolerance(texts)
        verdict = judge.judge(texts, [sampling.seed or 0] * len(texts), tolerance)
    assert verdict.wrong == []
    assert verdict.tokens == TOKENS * len(texts)
    assert verdict.tolerated <= AT_MOST_TOLERATED * verdict.tokens


def parks(engine: WatchedEngine) -> dict[str, int]:
    return dict(engine.stats().counters.parks)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("park", ["pause", "swap", "recompute"])
@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_parked_outputs_pass_the_check(
    make_engine: MakeEngine, tiny_model: Path, kind: str, park: str, layout: Layout
) -> None:
    sampling = SAMPLINGS[kind]
    kv = EXACT.model_copy(update={"layout": layout.value, "spare_sequences": 8})
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=8, part=512, park=park, kv=kv, observer=follower, open_context=intercepted(gate.pass_through)
    ) as engine:
        with gate:
            batch = [await engine.submit(prompt, sampling=sampling, priority="batch") for prompt in PROMPTS]
            for steps in (4, 9):  # the second time after some of them have been parked and have gone on
                gate.let(steps)
                await follower.wait_for(EventKind.STEP, times=steps)
                urgent = [
                    await engine.submit(
                        "urgent", sampling=greedy(3), priority="interactive", tenant=f"{steps} {number}"
                    )
                    for number in range(2)
                ]
                for handle in urgent:
                    await follower.wait_for(EventKind.ADMITTED, handle.id)
        texts = [await written(handle) for handle in batch]
        assert parks(engine) == {park: 4}
    judge(tiny_model, sampling, texts)


async def test_outputs_pass_the_check_that_were_swapped_a_few_cells_at_a_time(
    monkeypatch: pytest.MonkeyPatch, make_engine: MakeEngine, tiny_model: Path
) -> None:
    """Between two steps there is time for a single part, so that steps go on while sequences are saved and put back."""
    monkeypatch.setattr(parts, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(parts, "STEP_SHARE", 0.0)

    def in_small_parts(model: Model, options: ContextOptions) -> StepContext:
        return Context(model, replace(options, part_bytes=2048))

    sampling = greedy(TOKENS)
    kv = EXACT.model_copy(update={"layout": "paged"})
    async with make_engine(places=8, part=512, park="swap", kv=kv, open_context=in_small_parts) as engine:
        batch = [await engine.submit(prompt, sampling=sampling, priority="batch") for prompt in PROMPTS]
        for number in range(4):
            await engine.generate("urgent", sampling=greedy(3), priority="interactive", tenant=str(number))
        texts = [await written(handle) for handle in batch]
        assert parks(engine)["swap"] > 0
    judge(tiny_model, sampling, texts)


async def test_every_batch_request_gets_to_its_end_however_often_urgent_ones_come(
    make_engine: MakeEngine, tiny_model: Path
) -> None:
    follower = Follower()
    async with make_engine(places=8, observer=follower) as engine:
        batch = [await engine.submit(prompt, sampling=greedy(TOKENS), priority="batch") for prompt in PROMPTS]
        while not all(handle.state is RequestState.DONE for handle in batch):
            await engine.generate("urgent", sampling=greedy(3), priority="interactive")
        texts = [await written(handle) for handle in batch]
        assert sum(parks(engine).values()) > 0
    judge(tiny_model, greedy(TOKENS), texts)


async def test_a_parked_request_can_be_cancelled(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(places=1, observer=follower, open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            gate.let(1)
            batch = await engine.submit("batch", sampling=greedy(200), priority="batch")
            await follower.wait_for(EventKind.STARTED, batch.id)
            urgent = await engine.submit("urgent", sampling=greedy(30), priority="interactive")
            await anyio.wait_all_tasks_blocked()  # the lane has been told to park
            gate.let(2)  # the step under way, and the first of the urgent request, which tells of the parking
            await follower.wait_for(EventKind.PARKED, batch.id)
            batch.cancel()  # it waits for certain: the urgent request has yet to get most of its tokens
            assert batch.state is RequestState.DONE
        await urgent
    with pytest.raises(RequestCancelledError):
        await batch


async def test_nobody_gives_way_to_an_equal(make_engine: MakeEngine) -> None:
    async with make_engine(places=1) as engine:
        first = await engine.submit("first", sampling=greedy(50), priority=2)
        second = await engine.submit("second", sampling=greedy(5), priority=2)
        await first
        await second
        assert not parks(engine)

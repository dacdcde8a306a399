"""Prompts that begin alike are computed once, and nothing of one tenant shows in what another gets."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from llamalane.errors import InvalidRequestError
from llamalane.ids import RequestId
from llamalane.kvcache import Layout
from llamalane.scheduler import RequestHandle, Result
from tests.engine.conftest import MakeEngine
from tests.engine.running import EXACT, WatchedEngine, greedy, seeded
from tests.engine.teacher_forced import Judge, Solo, Written

pytestmark = pytest.mark.anyio

SYSTEM = "The llama is a domesticated South American camelid. " * 12
AT_MOST_TOLERATED = 0.01


def computed(engine: WatchedEngine) -> int:
    counters = engine.stats().counters
    return counters.prompt_tokens - counters.cached_tokens


async def written(handle: RequestHandle) -> Written:
    return Written(tuple(handle._request.tokens), (await handle).tokens)


@pytest.mark.parametrize("layout", Layout)
async def test_a_long_system_prompt_is_computed_once_for_32_requests(
    make_engine: MakeEngine, tiny_model: Path, layout: Layout
) -> None:
    questions = [f"question {number:02} of 32?" for number in range(32)]
    kv = EXACT.model_copy(update={"layout": layout.value})
    async with make_engine(places=8, part=1024, kv=kv) as engine:
        handles = [await engine.submit(SYSTEM + question, sampling=greedy(8)) for question in questions]
        texts = [await written(handle) for handle in handles]
        unique = sum(len(question) for question in questions)
        assert computed(engine) <= 1.1 * (len(SYSTEM) + unique)
    with Solo(tiny_model, cells=1024) as solo:
        judge = Judge(solo, greedy(8))
        verdict = judge.judge(texts, [0] * 32, judge.tolerance(texts[:8]))
    assert verdict.wrong == []
    assert verdict.tolerated <= AT_MOST_TOLERATED * verdict.tokens


async def test_a_lane_of_many_places_shares_cells_like_others(make_engine: MakeEngine) -> None:
    """With as many sequences to spare as places, none of llama.cpp's ids would be left for what sharing needs."""
    async with make_engine(places=128) as engine:
        (lane,) = engine.pool.lanes
        assert lane.region.shares
        assert lane.region.saves_in_parts


async def test_choices_share_their_prompt(make_engine: MakeEngine) -> None:
    async with make_engine(places=4, part=512) as engine:
        ids = [RequestId(f"choice-{number}") for number in range(4)]
        handles = await engine.submit_choices(SYSTEM, ids, sampling=seeded(3, 12))
        results = [await handle for handle in handles]
        prompt = results[0].usage.prompt_tokens
        assert computed(engine) <= prompt + 3
    assert [result.usage.cached_tokens for result in results] == [0, *[prompt - 1] * 3]
    assert len({result.tokens for result in results}) > 1, "the choices are all the same"


async def test_choices_that_cannot_be_are_refused(make_engine: MakeEngine) -> None:
    async with make_engine(places=4, part=512, reserve={"interactive": 1}) as engine:
        for ids, options, message in (
            ([], {}, "from 1 to 3 choices"),
            (["a", "b", "c", "d"], {}, "from 1 to 3 choices"),
            (["a", "b"], {"supersede": "key"}, "supersede is for a single choice"),
        ):
            with pytest.raises(InvalidRequestError, match=message):
                await engine.submit_choices(SYSTEM, [RequestId(name) for name in ids], **options)  # type: ignore[arg-type]
        assert engine.stats().waiting_tokens == 0


@pytest.mark.parametrize("layout", Layout)
async def test_no_tenant_gets_what_another_has_left(make_engine: MakeEngine, tiny_model: Path, layout: Layout) -> None:
    """Prompts of all tenants begin alike; each output is that of its own prompt."""
    tenants = [f"tenant-{number}" for number in range(8)]
    draw = random.Random(5)
    kv = EXACT.model_copy(update={"layout": layout.value})
    texts: list[Written] = []
    async with make_engine(places=4, part=512, kv=kv, park="swap") as engine:
        for _ in range(12):
            asked: list[RequestHandle] = []
            for _ in range(10):
                tenant = draw.choice(tenants)
                prompt = SYSTEM[:150] + f"The secret of {tenant} is {tenants.index(tenant) * 7919:05}. What is it?"
                handle = await engine.submit(prompt, sampling=greedy(6), tenant=tenant, priority=draw.randint(1, 5))
                asked.append(handle)
                if draw.random() < 0.15:
                    handle.cancel()
            for handle in asked:
                outcome = await handle._request.delivery.wait_closed()
                if isinstance(outcome, Result):
                    texts.append(Written(tuple(handle._request.tokens), outcome.tokens))
    with Solo(tiny_model) as solo:
        judge = Judge(solo, greedy(6))
        verdict = judge.judge(texts, [0] * len(texts), judge.tolerance(texts[:8]))
    assert verdict.wrong == []
    assert verdict.tolerated <= AT_MOST_TOLERATED * verdict.tokens

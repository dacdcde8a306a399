"""An output is the same whether its request runs alone or among others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from llamalane.scheduler import (
    Engine,
    EngineConfig,
    KVConfig,
    LaneConfig,
    ModelConfig,
    SamplingParameters,
    StreamsConfig,
)
from llamalane.streams import lane_thread
from llamalane.streams.thread_count import ThreadCount
from tests.engine.conftest import MakeEngine
from tests.engine.running import greedy, seeded
from tests.engine.teacher_forced import Judge, Solo, Verdict, Written, cumulative

pytestmark = pytest.mark.anyio

PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was",
    "To bake bread, you need flour,",
    "The three primary colours are",
    "In the morning the ship left",
    "Water boils at a temperature of",
    "My favourite season is autumn because",
    "She opened the old book and",
    "A good way to learn a language is",
)
ALONE = 2
"""So many of the prompts also run alone."""
AT_MOST_TOLERATED = 0.01
TOKENS = 24


async def run_alone_and_together(engine: Engine, sampling: Sequence[SamplingParameters]) -> list[Written]:
    """Return the outputs of some prompts alone, then of all prompts at once."""
    prompts = []
    outputs = []
    for prompt, parameters in list(zip(PROMPTS, sampling, strict=True))[:ALONE]:
        handle = await engine.submit(prompt, sampling=parameters, tenant="alone")
        prompts.append(handle)
        outputs.append((await handle).tokens)
    together = [
        await engine.submit(prompt, sampling=parameters, tenant="together")
        for prompt, parameters in zip(PROMPTS, sampling, strict=True)
    ]
    outputs += [(await handle).tokens for handle in together]
    return [
        Written(tuple(handle._request.tokens), output)
        for handle, output in zip([*prompts, *together], outputs, strict=True)
    ]


def judge(solo: Solo, sampling: Sequence[SamplingParameters], texts: Sequence[Written]) -> Verdict:
    judge = Judge(solo, sampling[0])
    seeds = [parameters.seed or 0 for parameters in sampling]
    return judge.judge(texts, [*seeds[:ALONE], *seeds], judge.tolerance(texts[ALONE : ALONE + 8]))


def samplings(kind: str) -> list[SamplingParameters]:
    if kind == "greedy":
        return [greedy(TOKENS) for _ in PROMPTS]
    return [seeded(seed, TOKENS) for seed in range(len(PROMPTS))]


@pytest.mark.parametrize("kind", ["greedy", "seeded"])
async def test_tiny_outputs_pass_the_check(make_engine: MakeEngine, tiny_model: Path, kind: str) -> None:
    async with make_engine(places=9) as engine:
        texts = await run_alone_and_together(engine, samplings(kind))
    with Solo(tiny_model) as solo:
        verdict = judge(solo, samplings(kind), texts)
    assert verdict.wrong == []
    assert verdict.tokens == TOKENS * (ALONE + len(PROMPTS))
    assert verdict.tolerated <= AT_MOST_TOLERATED * verdict.tokens


class Restless(ThreadCount):
    """Lets each step have another number of threads, and tells which there were."""

    seen: ClassVar[set[int]] = set()

    def observe(self, wall: float, ran: float, now: float) -> None:
        self.seen.add(self.threads)
        self.threads = 1 + self.threads % 3


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_number_of_threads_plays_no_part(
    make_engine: MakeEngine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_thread, "ThreadCount", Restless)
    async with make_engine(places=9) as engine:
        texts = await run_alone_and_together(engine, samplings("seeded"))
    assert Restless.seen == {1, 2, 3}
    with Solo(tiny_model) as solo:
        verdict = judge(solo, samplings("seeded"), texts)
    assert verdict.wrong == []
    assert verdict.tolerated <= AT_MOST_TOLERATED * verdict.tokens


@pytest.mark.smollm2
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the event loop plays no part in it, and it takes long
@pytest.mark.parametrize("kind", ["greedy", "seeded"])
async def test_smollm2_outputs_pass_the_check(smollm2: Path, kind: str) -> None:
    kv = KVConfig(budget=9 * 256)
    config = EngineConfig(
        models=[ModelConfig(path=smollm2)], streams=StreamsConfig(lanes=[LaneConfig(places=9)]), kv=kv
    )
    async with Engine(config) as engine:
        texts = await run_alone_and_together(engine, samplings(kind))
    with Solo(smollm2, kv) as solo:
        verdict = judge(solo, samplings(kind), texts)
    assert verdict.wrong == []
    assert verdict.tokens == TOKENS * (ALONE + len(PROMPTS))
    assert verdict.tolerated <= AT_MOST_TOLERATED * verdict.tokens


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_check_notices_a_wrong_token(tiny_model: Path) -> None:
    with Solo(tiny_model) as solo:
        prompts = [solo.model.vocabulary.tokenize(text, add_special=True, parse_special=False) for text in PROMPTS]
        forbidden = solo.model.vocabulary.end_of_generation
        texts = [Written(tuple(prompt), tuple(solo.likeliest_tokens(prompt, 8, forbidden))) for prompt in prompts[:8]]
        judge = Judge(solo, greedy(8))
        tolerance = judge.tolerance(texts)
        right = judge.judge(texts, [0] * 8, tolerance)
        swapped = [Written(text.prompt, (*text.output[:4], text.output[5], *text.output[5:])) for text in texts]
        wrong = judge.judge(swapped, [0] * 8, tolerance)
        drawn = Judge(solo, seeded(0, 8))
        unlucky = drawn.judge(texts, list(range(8)), drawn.tolerance(texts))
    assert right.wrong == []
    assert right.tolerated == 0
    assert len(wrong.wrong) >= 8
    assert len(unlucky.wrong) > 8, "the likeliest tokens are not those that were drawn"


def test_a_distribution_is_cut_as_told() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], np.float32))
    every = cumulative(logits, SamplingParameters(temperature=1, top_k=0, top_p=1, min_p=0))
    assert every == pytest.approx([0.1, 0.5, 0.55, 0.8, 1.0])
    top_k = cumulative(logits, SamplingParameters(temperature=1, top_k=2, top_p=1, min_p=0))
    assert top_k == pytest.approx(np.array([0, 0.4, 0.4, 0.65, 0.65]) / 0.65)
    top_p = cumulative(logits, SamplingParameters(temperature=1, top_k=0, top_p=0.8, min_p=0))
    assert top_p == pytest.approx(np.array([0, 0.4, 0.4, 0.65, 0.85]) / 0.85)
    min_p = cumulative(logits, SamplingParameters(temperature=1, top_k=0, top_p=1, min_p=0.3))
    assert min_p == pytest.approx(np.array([0, 0.4, 0.4, 0.65, 0.85]) / 0.85)
    cold = cumulative(logits, SamplingParameters(temperature=0.5, top_k=2, top_p=1, min_p=0))
    assert cold == pytest.approx(np.array([0, 16, 16, 22.25, 22.25]) / 22.25)

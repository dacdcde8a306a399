"""Outputs that are drafted are those that would have come without drafts, and the books hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llamalane.errors import ConfigError, DecodeError, RequestCancelledError
from llamalane.kvcache import Layout
from llamalane.scheduler import (
    Event,
    EventKind,
    FinishReason,
    Grammar,
    KVConfig,
    LookupConfig,
    RequestHandle,
    SamplingParameters,
)
from tests.engine.conftest import MakeEngine
from tests.engine.raw_scores import RawModel
from tests.engine.running import EXACT, Follower, Gate, WatchedEngine, greedy, intercepted, seeded, tokens_of
from tests.engine.teacher_forced import Judge, Solo, Written
from tests.engine.test_context_end import LONG, SHIFTING, shortfall
from tests.engine.test_context_end import ROUNDING as SHIFTED_ROUNDING
from tests.engine.test_failures import failing_at
from tests.engine.test_oversubscription import CELLS, EACH, PLACES, prompts, teach_short_outputs
from tests.engine.test_same_output import PROMPTS as NINE_PROMPTS
from tests.models.tiny_gguf import Kind

pytestmark = pytest.mark.anyio

PROMPTS = NINE_PROMPTS[:8]
TOKENS = 40
FEW = {token: float("-inf") for token in range(260) if token not in tokens_of("abc")[1:]}
"""Lets an output have three letters, so that it repeats itself, though the model knows no text."""
SAMPLINGS = {
    "greedy": greedy(TOKENS, logit_bias=FEW),
    "penalties": greedy(TOKENS, logit_bias=FEW, repeat_penalty=1.1, frequency_penalty=0.1, repeat_last_n=24),
    "seeded": seeded(7, TOKENS, logit_bias=FEW),
}
ALL = LookupConfig(draft_tokens=8, most_rows=8)
AT_MOST_TOLERATED = 0.01


def kv_for(layout: Layout, spare: int = 0) -> KVConfig:
    return EXACT.model_copy(update={"layout": layout.value, "spare_sequences": spare})


async def written(handle: RequestHandle) -> Written:
    return Written(tuple(handle._request.tokens), (await handle).tokens)


def drafted(engine: WatchedEngine) -> tuple[int, int]:
    """How many tokens were drafted, and how many of them were right."""
    lanes = engine.stats().lanes
    return sum(lane.drafted_tokens for lane in lanes), sum(lane.accepted_tokens for lane in lanes)


def judge(model: Path, sampling: SamplingParameters, texts: Sequence[Written]) -> None:
    """Check every token; there are 8 texts at least."""
    with Solo(model) as solo:
        judge = Judge(solo, sampling)
        verdict = judge.judge(texts, [sampling.seed or 0] * len(texts), judge.tolerance(texts[:8]))
    assert verdict.wrong == []
    assert verdict.tolerated <= AT_MOST_TOLERATED * verdict.tokens


class Auditor(Follower):
    """Checks an engine's books after each step."""

    engine: WatchedEngine | None = None

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if event.kind is EventKind.STEP and self.engine is not None and hasattr(self.engine, "pool"):
            self.engine.pool.check()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_drafted_outputs_pass_the_check(
    make_engine: MakeEngine, tiny_model: Path, kind: str, layout: Layout
) -> None:
    sampling = SAMPLINGS[kind]
    auditor = Auditor()
    async with make_engine(places=8, kv=kv_for(layout), lookup=ALL, observer=auditor) as engine:
        auditor.engine = engine
        alone = [await written(await engine.submit(prompt, sampling=sampling)) for prompt in PROMPTS[:2]]
        made, right = drafted(engine)
        assert 0 < right < made
        assert engine.stats().lanes[0].steps == 2 * TOKENS - right
        together = [await engine.submit(prompt, sampling=sampling, tenant="other") for prompt in PROMPTS]
        texts = [await written(handle) for handle in together]
        counters = engine.stats().counters
    assert counters.completion_tokens == TOKENS * 10
    judge(tiny_model, sampling, [*texts, *alone])


@pytest.mark.parametrize("kind", [Kind.DENSE, Kind.SLIDING])
async def test_a_model_that_repeats_itself_takes_fewer_steps(
    make_engine: MakeEngine, tiny_models: Mapping[Kind, Path], kind: Kind
) -> None:
    sampling = greedy(100, logit_bias=FEW)
    outputs = []
    for lookup in (None, ALL):
        async with make_engine(tiny_models[kind], lookup=lookup) as engine:
            outputs.append((await engine.generate(PROMPTS[0], sampling=sampling)).tokens)
            made, right = drafted(engine)
            steps = engine.stats().lanes[0].steps
    assert outputs[0] == outputs[1]
    assert steps == 100 - right < 90
    assert right > made / 3


async def test_by_default_nothing_is_drafted(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        await engine.generate(PROMPTS[0], sampling=SAMPLINGS["greedy"])
        assert drafted(engine) == (0, 0)


@pytest.mark.parametrize("kind", [Kind.RECURRENT, Kind.HYBRID])
async def test_a_model_that_cannot_go_back_cannot_draft(
    make_engine: MakeEngine, tiny_models: Mapping[Kind, Path], kind: Kind
) -> None:
    with pytest.raises(ConfigError, match=r"streams\.lookup\.draft_tokens is 8.*recurrent or hybrid"):
        async with make_engine(tiny_models[kind], lookup=ALL):
            pass


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 12, 23])
async def test_an_output_has_no_more_tokens_than_it_may(make_engine: MakeEngine, length: int) -> None:
    async with make_engine(lookup=ALL) as engine:
        result = await engine.generate(PROMPTS[0], sampling=greedy(length, logit_bias=FEW))
    assert len(result.tokens) == result.usage.completion_tokens == length
    assert result.finish_reason is FinishReason.LENGTH


async def test_an_output_ends_at_its_stop_string_and_its_cells_can_be_gone_on_from(
    make_engine: MakeEngine, tiny_model: Path
) -> None:
    sampling = SAMPLINGS["greedy"]
    async with make_engine(lookup=ALL, places=8) as engine:
        whole = await engine.generate(PROMPTS[1], sampling=sampling)
        stop = whole.text[21:25]
        handle = await engine.submit(PROMPTS[1], sampling=replace(sampling, stop=(stop,)), tenant="stopped")
        stopped = await handle
        prompt = [*handle._request.tokens, *stopped.tokens]
        following = [await written(await engine.submit(prompt, sampling=sampling, tenant="stopped")) for _ in range(8)]
        assert drafted(engine)[1] > 0
        assert engine.stats().counters.hit_tokens > len(prompt)
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.finish_reason is FinishReason.STOP
    judge(tiny_model, sampling, following)


async def test_a_cancelled_request_leaves_what_was_right(make_engine: MakeEngine, tiny_model: Path) -> None:
    sampling = SAMPLINGS["greedy"]
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=8, lookup=ALL, observer=follower, open_context=intercepted(gate.pass_through)
    ) as engine:
        with gate:
            handle = await engine.submit(PROMPTS[0], sampling=greedy(200, logit_bias=FEW))
            gate.let(30)
            await follower.wait_for(EventKind.STEP, times=30)
            said = list(handle._request.generated)
            handle.cancel()
        with pytest.raises(RequestCancelledError):
            await handle
        assert len(said) > 30
        prompt = [*handle._request.tokens, *said]
        following = [await written(await engine.submit(prompt, sampling=sampling)) for _ in range(8)]
        assert engine.stats().counters.hit_tokens > len(prompt)
        assert engine.stats().lanes[0].failures == 0
    judge(tiny_model, sampling, following)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("park", ["pause", "swap", "recompute"])
@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_parked_outputs_pass_the_check(
    make_engine: MakeEngine, tiny_model: Path, kind: str, park: str, layout: Layout
) -> None:
    sampling = replace(SAMPLINGS[kind], max_tokens=2 * TOKENS)
    gate, auditor = Gate(), Auditor()
    async with make_engine(
        places=8,
        part=512,
        park=park,
        kv=kv_for(layout, spare=8),
        lookup=ALL,
        observer=auditor,
        open_context=intercepted(gate.pass_through),
    ) as engine:
        auditor.engine = engine
        with gate:
            batch = [await engine.submit(prompt, sampling=sampling, priority="batch") for prompt in PROMPTS]
            gate.let(12)
            await auditor.wait_for(EventKind.STEP, times=12)
            for number in range(2):
                urgent = await engine.submit("hey", sampling=greedy(3), priority="interactive", tenant=str(number))
                await auditor.wait_for(EventKind.ADMITTED, urgent.id)
        texts = [await written(handle) for handle in batch]
        assert engine.stats().counters.parks == {park: 2}
        assert drafted(engine)[1] > 0
        assert engine.stats().lanes[0].failures == 0
    judge(tiny_model, sampling, texts)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("park", ["swap", "recompute"])
async def test_all_get_to_their_ends_with_cells_for_a_part_of_them(
    make_engine: MakeEngine, tiny_model: Path, park: str
) -> None:
    sampling = greedy(EACH - len(prompts(1)[0]), logit_bias=FEW)
    count = 2 * CELLS // EACH
    auditor = Auditor()
    async with make_engine(places=PLACES, part=CELLS // PLACES, park=park, lookup=ALL, observer=auditor) as engine:
        await teach_short_outputs(engine)
        auditor.engine = engine
        handles = [
            engine.submit_tokens_nowait(tokens, sampling=sampling, priority="batch", tenant=str(number))
            for number, tokens in enumerate(prompts(count))
        ]
        texts = [await written(handle) for handle in handles]
        assert engine.stats().counters.parks[park] > 0
        assert drafted(engine)[1] > 0
        assert engine.stats().lanes[0].failures == 0
    judge(tiny_model, sampling, texts)


async def test_with_many_sequences_nobody_drafts(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    lookup = LookupConfig(draft_tokens=8)
    async with make_engine(lookup=lookup, observer=follower, open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            handles = [await engine.submit(prompt, sampling=SAMPLINGS["greedy"]) for prompt in PROMPTS[:3]]
            gate.let(TOKENS - 2)
            await follower.wait_for(EventKind.STEP, times=TOKENS - 2)
            assert drafted(engine) == (0, 0)
        for handle in handles:
            await handle
        await engine.generate(PROMPTS[3], sampling=SAMPLINGS["greedy"])
        assert drafted(engine)[1] > 0


async def test_only_the_levels_that_may_draft(make_engine: MakeEngine) -> None:
    lookup = ALL.model_copy(update={"levels": ["agent"]})
    async with make_engine(lookup=lookup) as engine:
        await engine.generate(PROMPTS[0], sampling=SAMPLINGS["greedy"], priority="batch")
        assert drafted(engine) == (0, 0)
        await engine.generate(PROMPTS[1], sampling=SAMPLINGS["greedy"], priority="agent")
        assert drafted(engine)[1] > 0


async def test_a_grammar_is_kept_to(make_engine: MakeEngine) -> None:
    pattern = "(ab|ba){30}c"
    async with make_engine(lookup=ALL) as engine:
        for sampling in (SamplingParameters(temperature=0), SamplingParameters(temperature=1, seed=3)):
            result = await engine.generate(
                "ababab", sampling=replace(sampling, grammar=Grammar.regex(pattern), max_tokens=100)
            )
            assert re.fullmatch(pattern, result.text)
            assert result.finish_reason is FinishReason.STOP
        assert drafted(engine)[1] > 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_log_probabilities_are_those_of_each_token(make_engine: MakeEngine, tiny_model: Path, kind: str) -> None:
    sampling = replace(SAMPLINGS[kind], logprobs=2, prompt_logprobs=1)
    async with make_engine(lookup=ALL) as engine:
        handle = await engine.submit(PROMPTS[0], sampling=sampling)
        result = await handle
        assert drafted(engine)[0] > 0
    with RawModel(tiny_model) as raw:
        raw.check(handle._request.tokens, result, 2)


@pytest.mark.parametrize("step", [3, 20])
async def test_a_lane_that_fails_loses_no_token(make_engine: MakeEngine, tiny_model: Path, step: int) -> None:
    sampling = SAMPLINGS["greedy"]
    failing = failing_at([step], DecodeError(-3))
    async with make_engine(places=8, lookup=ALL, open_context=failing) as engine:
        handles = [await engine.submit(prompt, sampling=sampling) for prompt in PROMPTS]
        texts = [await written(handle) for handle in handles]
        assert engine.stats().lanes[0].failures == 1
        assert drafted(engine)[1] > 0
    judge(tiny_model, sampling, texts)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kv", [SHIFTING, SHIFTING.model_copy(update={"layout": "paged"})])
async def test_a_shifted_output_goes_on_as_it_would_alone(
    make_engine: MakeEngine, tiny_model: Path, kv: KVConfig
) -> None:
    prompt = tokens_of("the quick brown fox jumps over the lazy dog")
    async with make_engine(places=1, kv=kv, lookup=ALL) as engine:
        result = await engine.generate(prompt, sampling=greedy(LONG, logit_bias=FEW))
        made, right = drafted(engine)
        assert engine.stats().lanes[0].failures == 0
    assert len(result.tokens) == LONG
    assert 0 < right < made
    assert shortfall(tiny_model, prompt, result.tokens, FEW) < SHIFTED_ROUNDING


async def test_choices_of_one_prompt_each_say_their_own(make_engine: MakeEngine, tiny_model: Path) -> None:
    sampling = seeded(7, TOKENS, logit_bias=FEW)
    async with make_engine(places=8, lookup=ALL) as engine:
        handles = [await engine.submit(PROMPTS[0], sampling=replace(sampling, seed=seed)) for seed in range(8)]
        texts = [await written(handle) for handle in handles]
        assert drafted(engine)[1] > 0
    with Solo(tiny_model) as solo:
        judge = Judge(solo, sampling)
        verdict = judge.judge(texts, range(8), judge.tolerance(texts))
    assert verdict.wrong == []

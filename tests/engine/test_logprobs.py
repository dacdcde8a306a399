"""Log probabilities of outputs and prompts, beside those that llama.cpp's own functions give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from llamalane.errors import DecodeError, InvalidRequestError, RequestCancelledError
from llamalane.ids import RequestId
from llamalane.kvcache import Layout
from llamalane.scheduler import EventKind, FinishReason, Grammar, KVConfig, OutputToken, RequestHandle, Result
from llamalane.streams import SamplingParameters
from tests.engine.conftest import MakeEngine
from tests.engine.raw_scores import RawModel
from tests.engine.running import EXACT, PART, Follower, Gate, greedy, intercepted, seeded, tokens_of
from tests.engine.test_failures import failing_at
from tests.engine.test_handover import MakeDivided, _a_core_for_each_lane, make_divided
from tests.models.tiny_gguf import EOS

pytestmark = pytest.mark.anyio

__all__ = ["_a_core_for_each_lane", "make_divided"]

PROMPT = "Once upon a time, there was a llama"
LONG = "The quick brown llama jumps over the lazy dog. " * 4
TOKENS = 24
SAMPLINGS = {
    "greedy": greedy(TOKENS),
    "seeded": seeded(3, TOKENS),
    "everything": seeded(
        5,
        TOKENS,
        temperature=1.7,
        top_k=0,
        repeat_penalty=1.3,
        frequency_penalty=0.5,
        presence_penalty=0.5,
        logit_bias={70: 5.0, 80: -100},
    ),
    "grammar": seeded(7, TOKENS, grammar=Grammar.regex("[a-f]{30}")),
}


@pytest.fixture(scope="module")
def raw(tiny_model: Path) -> Iterator[RawModel]:
    with RawModel(tiny_model) as model:
        yield model


def kv_for(layout: Layout) -> KVConfig:
    return EXACT.model_copy(update={"layout": layout.value, "spare_sequences": 1})


def told(sampling: SamplingParameters, logprobs: int = 2, prompt: int | None = None) -> SamplingParameters:
    return replace(sampling, logprobs=logprobs, prompt_logprobs=prompt)


async def check(raw: RawModel, handle: RequestHandle, count: int = 2) -> Result:
    result = await handle
    raw.check(handle._request.tokens, result, count)
    return result


@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.parametrize("count", [0, 3, 20])
async def test_they_are_the_model_s_own_whatever_changes_the_choice(
    make_engine: MakeEngine, raw: RawModel, kind: str, count: int
) -> None:
    async with make_engine() as engine:
        result = await check(raw, await engine.submit(PROMPT, sampling=told(SAMPLINGS[kind], count)), count)
        silent = await engine.generate(PROMPT, sampling=SAMPLINGS[kind])
    assert (silent.text, silent.tokens) == (result.text, result.tokens), "they changed the output"
    assert [silent.logprobs, silent.cumulative_logprob, silent.ending, silent.prompt_logprobs] == [None] * 4


async def test_outputs_side_by_side_have_each_their_own(make_engine: MakeEngine, raw: RawModel) -> None:
    async with make_engine() as engine:
        handles = [
            await engine.submit(f"{number} {PROMPT}", sampling=told(sampling, number))
            for number, sampling in enumerate(SAMPLINGS.values())
        ]
        for number, handle in enumerate(handles):
            await check(raw, handle, number)


@pytest.mark.parametrize("layout", Layout)
async def test_choices_of_one_prompt(make_engine: MakeEngine, raw: RawModel, layout: Layout) -> None:
    async with make_engine(part=2 * PART, kv=kv_for(layout)) as engine:
        ids = [RequestId(str(number)) for number in range(3)]
        handles = await engine.submit_choices(PROMPT, ids, sampling=told(seeded(1, TOKENS)))
        results = [await check(raw, handle) for handle in handles]
    assert len({result.tokens for result in results}) == 3


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("park", ["pause", "swap", "recompute"])
async def test_who_was_parked_goes_on_with_his_own(
    make_engine: MakeEngine, raw: RawModel, park: str, layout: Layout
) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=2,
        park=park,
        part=2 * PART,
        kv=kv_for(layout),
        observer=follower,
        open_context=intercepted(gate.pass_through),
    ) as engine:
        with gate:
            batch = [
                await engine.submit(f"{number} {PROMPT}", sampling=told(seeded(number, TOKENS)), priority="batch")
                for number in range(2)
            ]
            gate.let(5)
            await follower.wait_for(EventKind.STEP, times=5)
            urgent = await engine.submit("urgent", sampling=told(greedy(3)), priority="interactive")
            await follower.wait_for(EventKind.ADMITTED, urgent.id)
        for handle in [*batch, urgent]:
            await check(raw, handle)
        assert dict(engine.stats().counters.parks) == {park: 1}


async def test_a_lane_that_fails_loses_none(make_engine: MakeEngine, raw: RawModel) -> None:
    async with make_engine(open_context=failing_at({2, 9}, DecodeError(-3))) as engine:
        handles = [
            await engine.submit(f"{number} {LONG}", sampling=told(seeded(number, TOKENS), prompt=1))
            for number in range(3)
        ]
        for handle in handles:
            result = await check(raw, handle)
            raw.check_prompt(handle._request.tokens, result.prompt_logprobs, 1)
        assert engine.stats().counters.restarts > 0


async def pieces_of(handle: RequestHandle) -> tuple[str, tuple[OutputToken, ...]]:
    """Follow an output, and check that each piece of it brings the tokens that begin in it."""
    text = ""
    tokens: tuple[OutputToken, ...] = ()
    async for piece in handle.pieces():
        assert piece.text
        assert all(len(text) <= token.start < len(text) + len(piece.text) for token in piece.tokens)
        text += piece.text
        tokens = (*tokens, *piece.tokens)
    return text, tokens


@pytest.mark.parametrize("seed", range(4))
async def test_a_stream_brings_the_same_as_the_result(make_engine: MakeEngine, raw: RawModel, seed: int) -> None:
    async with make_engine() as engine:
        handle = await engine.submit(PROMPT, sampling=told(seeded(seed, 120)))
        text, tokens = await pieces_of(handle)
        result = await check(raw, handle)
        silent = await engine.submit(PROMPT, sampling=seeded(seed, 120))
        assert (await pieces_of(silent)) == (text, ())
    assert (text, tokens) == (result.text, result.logprobs)
    assert 100 < len(tokens) <= len(result.tokens) == 120


async def test_a_stop_string_takes_its_tokens_along(make_engine: MakeEngine, raw: RawModel) -> None:
    spell = Grammar.choice(["say (never again)"])
    async with make_engine() as engine:
        for stop, text, count in (("ver ag", "say (ne", 7), ("say", "", 0), ("n)", "say (never agai", 15)):
            handle = await engine.submit(
                PROMPT, sampling=replace(told(greedy(40)), grammar=spell, stop=(stop, "ever!"))
            )
            assert await pieces_of(handle) == (text, (await handle).logprobs)
            result = await check(raw, handle)
            assert (result.text, result.finish_reason) == (text, FinishReason.STOP)
            assert [token.text for token in result.logprobs or ()] == list(text)
            assert len(result.tokens) == count + len(stop)


async def test_a_token_that_ends_the_output_is_told_apart(make_engine: MakeEngine, raw: RawModel) -> None:
    async with make_engine() as engine:
        bias = {EOS: 100.0}
        ended = await check(
            raw, await engine.submit(PROMPT, sampling=told(SamplingParameters(logit_bias=bias, seed=1)))
        )
        cut = await check(raw, await engine.submit(PROMPT, sampling=told(greedy(3))))
    assert (ended.text, ended.logprobs, ended.tokens) == ("", (), (EOS,))
    assert ended.ending is not None
    assert (ended.ending.text, ended.ending.bytes, ended.ending.start) == ("</s>", None, 0)
    assert ended.ending.logprob == ended.cumulative_logprob
    assert cut.ending is None


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("output_rows", [0, 64])
async def test_prompts_are_told_too(make_engine: MakeEngine, raw: RawModel, layout: Layout, output_rows: int) -> None:
    async with make_engine(part=2 * PART, kv=kv_for(layout), output_rows=output_rows) as engine:
        beside = await engine.submit("beside", sampling=greedy(200))
        handles = [
            await engine.submit(f"{number} {LONG}", sampling=told(greedy(4), prompt=number)) for number in range(2)
        ]
        for number, handle in enumerate(handles):
            prompt = await handle.prompt_logprobs()
            raw.check_prompt(handle._request.tokens, prompt, number)
            result = await check(raw, handle)
            assert result.prompt_logprobs == prompt
        beside.cancel()


@pytest.mark.parametrize(("output_rows", "chunk"), [(0, 5), (9, 9), (40, 40)])
async def test_a_prompt_is_told_in_chunks_of_the_logits_that_a_step_can_give(
    make_engine: MakeEngine, output_rows: int, chunk: int
) -> None:
    async with make_engine(part=2 * PART, kv=kv_for(Layout.PARTITIONED), output_rows=output_rows) as engine:
        handle = await engine.submit(LONG, sampling=told(greedy(1), prompt=2))
        await handle
        assert engine.stats().lanes[0].steps == math.ceil(handle.prompt_tokens / chunk)


@pytest.mark.parametrize("layout", Layout)
async def test_a_prompt_is_computed_for_it_though_it_was_cached(
    make_engine: MakeEngine, raw: RawModel, layout: Layout
) -> None:
    async with make_engine(part=2 * PART, kv=kv_for(layout)) as engine:
        await engine.generate(LONG, sampling=greedy(2))
        measured = await engine.submit(LONG, sampling=told(greedy(2), prompt=2))
        result = await check(raw, measured)
        raw.check_prompt(measured._request.tokens, result.prompt_logprobs, 2)
        assert result.usage.cached_tokens == 0
        again = await engine.generate(LONG, sampling=greedy(2))
        assert again.usage.cached_tokens >= len(LONG) - 1
        assert again.tokens == result.tokens


async def test_what_a_measured_request_leaves_is_cached(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        await engine.generate(LONG, sampling=told(greedy(2), prompt=2))
        assert (await engine.generate(LONG, sampling=greedy(2))).usage.cached_tokens >= len(LONG) - 1


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("park", ["pause", "swap", "recompute"])
async def test_a_prompt_that_is_parked_half_way_is_told_to_its_end(
    make_engine: MakeEngine, raw: RawModel, park: str, layout: Layout
) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=1,
        park=park,
        part=2 * PART,
        kv=kv_for(layout),
        observer=follower,
        open_context=intercepted(gate.pass_through),
    ) as engine:
        with gate:
            handle = await engine.submit(LONG, sampling=told(greedy(4), prompt=2), priority="batch")
            gate.let(3)
            await follower.wait_for(EventKind.STEP, times=3)
            assert handle._request.prompt_logprobs is not None
            begun = handle._request.prompt_logprobs.missing
            assert 1 < begun.start < begun.stop
            urgent = await engine.submit("urgent", sampling=greedy(3), priority="interactive")
            await follower.wait_for(EventKind.ADMITTED, urgent.id)
        result = await check(raw, handle)
        raw.check_prompt(handle._request.tokens, result.prompt_logprobs, 2)
        assert dict(engine.stats().counters.parks) == {park: 1}


async def test_a_prompt_is_told_by_the_lane_that_computes_it(make_divided: MakeDivided, raw: RawModel) -> None:
    async with make_divided() as engine:
        handles = [await engine.submit(f"{number} {LONG}", sampling=told(greedy(6), prompt=1)) for number in range(4)]
        for handle in handles:
            result = await check(raw, handle)
            raw.check_prompt(handle._request.tokens, result.prompt_logprobs, 1)
        assert engine.stats().counters.handovers == 4


async def test_a_prompt_of_one_token_is_told(make_engine: MakeEngine, raw: RawModel) -> None:
    async with make_engine() as engine:
        handle = await engine.submit([77], sampling=told(greedy(2), prompt=2))
        prompt = await handle.prompt_logprobs()
        raw.check_prompt([77], prompt, 2)
        assert prompt == (await handle).prompt_logprobs


async def test_a_prompt_that_fills_its_sequence_is_told(make_engine: MakeEngine, raw: RawModel) -> None:
    prompt = [tokens_of("x")[0], *(3 + number % 250 for number in range(PART - 2))]
    kv = EXACT.model_copy(update={"layout": "partitioned"})
    async with make_engine(kv=kv) as engine:
        handle = await engine.submit(prompt, sampling=told(greedy(None), prompt=0))  # type: ignore[arg-type]
        raw.check_prompt(prompt, (await check(raw, handle)).prompt_logprobs, 0)


async def test_whoever_waits_for_a_prompt_hears_of_its_end(make_engine: MakeEngine) -> None:
    gate = Gate()
    async with make_engine(open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            handle = await engine.submit(LONG, sampling=told(greedy(4), prompt=2))
            errors = []

            async def wait() -> None:
                with pytest.raises(RequestCancelledError) as caught:
                    await handle.prompt_logprobs()
                errors.append(caught.value)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                handle.cancel()
            assert len(errors) == 1
            silent = await engine.submit(LONG, sampling=greedy(4))
            assert await silent.prompt_logprobs() is None
            silent.cancel()


async def test_several_choices_cannot_each_measure_the_prompt(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        ids = [RequestId("a"), RequestId("b")]
        with pytest.raises(InvalidRequestError, match="single choice") as caught:
            await engine.submit_choices(PROMPT, ids, sampling=told(greedy(4), prompt=2))
        assert caught.value.param == "prompt_logprobs"
        (alone,) = await engine.submit_choices(PROMPT, ids[:1], sampling=told(greedy(4), prompt=2))
        assert (await alone).prompt_logprobs is not None


async def test_a_shifted_output_is_told_to_its_end(make_engine: MakeEngine) -> None:
    kv = EXACT.model_copy(update={"layout": "partitioned", "context_shift": True})
    async with make_engine(kv=kv) as engine:
        result = await engine.generate(PROMPT, sampling=told(greedy(2 * PART), prompt=1))
    assert result.logprobs is not None
    assert PART < len(result.logprobs) <= len(result.tokens) == 2 * PART
    assert result.prompt_logprobs is not None


async def test_tokens_are_spelled(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        spelled = engine.spell([1, 3 + 0x41, 259, 3 + 0xF0])
        assert [(token.text, token.bytes) for token in spelled] == [
            ("<s>", None),
            ("A", b"A"),
            (" ", b" "),
            ("\\xf0", b"\xf0"),
        ]
        for wrong in (260, -1, True, "1"):
            with pytest.raises(InvalidRequestError, match="from 0 to 259"):
                engine.spell([wrong])  # type: ignore[list-item]

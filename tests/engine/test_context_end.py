"""What happens to a request whose sequence is full."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from llamalane.errors import ConfigError, InvalidRequestError, PromptTooLongError
from llamalane.ids import SequenceId
from llamalane.scheduler import EngineState, EventKind, KVConfig
from llamalane.streams import ContextShift, FinishReason
from llamalane.streams.llama import Batch, Context, ContextOptions, Model, ModelOptions
from tests.engine.conftest import MakeEngine
from tests.engine.running import EXACT, PART, Follower, Gate, greedy, intercepted, tokens_of
from tests.models.tiny_gguf import Kind

pytestmark = pytest.mark.anyio

LIMIT = PART
"""Tokens that one sequence holds in these engines, whose sequences have parts of their own."""
KEEP = 4
APART = EXACT.model_copy(update={"layout": "partitioned"})
SHIFTING = APART.model_copy(update={"context_shift": True, "context_keep": KEEP})
PAGED = SHIFTING.model_copy(update={"layout": "paged"})
SHIFT = ContextShift(LIMIT, KEEP + 1)
"""What the engines with a shift do: the model's own first token is kept too."""
PROMPT = tokens_of("the quick brown fox jumps over the lazy dog")
ROUNDING = 1e-3
EDGE = LIMIT - len(PROMPT)
"""So many steps make a sequence full."""
LONG = 2 * LIMIT + 50


def prompt_of(length: int) -> list[int]:
    return [PROMPT[0], *(3 + number % 250 for number in range(length - 1))]


@pytest.mark.parametrize("kv", [APART, SHIFTING], ids=["ends", "shifts"])
@pytest.mark.parametrize(
    ("length", "max_tokens", "given"),
    [(LIMIT - 10, 9, 9), (LIMIT - 10, 10, 10), (LIMIT - 10, None, 10), (LIMIT - 1, None, 1), (1, None, LIMIT - 1)],
)
async def test_an_output_that_fits_ends_at_its_own_limit_or_with_the_sequence(
    make_engine: MakeEngine, kv: KVConfig, length: int, max_tokens: int | None, given: int
) -> None:
    async with make_engine(kv=kv) as engine:
        result = await engine.generate(prompt_of(length), sampling=greedy(max_tokens))  # type: ignore[arg-type]
    assert len(result.tokens) == given
    assert result.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(("length", "max_tokens"), [(LIMIT - 10, 11), (LIMIT - 10, LIMIT), (LIMIT - 1, 2)])
async def test_an_output_that_does_not_fit_is_cut(make_engine: MakeEngine, length: int, max_tokens: int) -> None:
    async with make_engine(kv=APART) as engine:
        result = await engine.generate(prompt_of(length), sampling=greedy(max_tokens))
    assert len(result.tokens) == LIMIT - length
    assert result.finish_reason is FinishReason.LENGTH


async def test_what_can_never_fit_is_refused(make_engine: MakeEngine) -> None:
    async with make_engine(kv=APART) as engine:
        with pytest.raises(PromptTooLongError, match=f"{LIMIT} tokens.*holds {LIMIT}"):
            await engine.submit(prompt_of(LIMIT))
        with pytest.raises(InvalidRequestError, match=f"at most {LIMIT}.*got {LIMIT + 1}"):
            await engine.submit(PROMPT, sampling=greedy(LIMIT + 1))


async def test_a_prompt_must_fit_even_where_outputs_need_not(make_engine: MakeEngine) -> None:
    async with make_engine(kv=SHIFTING) as engine:
        with pytest.raises(PromptTooLongError, match=f"{LIMIT} tokens.*holds {LIMIT}"):
            await engine.submit(prompt_of(LIMIT), sampling=greedy(LONG))


@pytest.mark.parametrize("kind", [Kind.DENSE, Kind.SLIDING])
@pytest.mark.parametrize("kv", [SHIFTING, PAGED], ids=["partitioned", "paged"])
async def test_a_shifted_output_goes_on_as_it_would_alone(
    make_engine: MakeEngine, tiny_models: Mapping[Kind, Path], kv: KVConfig, kind: Kind
) -> None:
    places = 3 if kv is SHIFTING else 1  # paged, one sequence can have all cells
    async with make_engine(tiny_models[kind], places=places, kv=kv) as engine:
        prompts = [PROMPT, prompt_of(LIMIT - 1), prompt_of(30)]
        handles = [await engine.submit(prompt, sampling=greedy(LONG)) for prompt in prompts]
        results = [await handle for handle in handles]
        assert engine.stats().lanes[0].failures == 0
    for prompt, result in zip(prompts, results, strict=True):
        assert len(result.tokens) == LONG
        assert result.finish_reason is FinishReason.LENGTH
        assert shortfall(tiny_models[kind], prompt, result.tokens) < ROUNDING


@pytest.mark.parametrize("park", ["pause", "swap", "recompute"])
@pytest.mark.parametrize("steps", [100, EDGE, LIMIT + 20])
async def test_a_shifted_output_can_be_parked(make_engine: MakeEngine, tiny_model: Path, park: str, steps: int) -> None:
    kv = SHIFTING.model_copy(update={"spare_sequences": 1})
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=1, part=2 * PART, kv=kv, park=park, observer=follower, open_context=intercepted(gate.pass_through)
    ) as engine:
        with gate:
            batch = await engine.submit(PROMPT, sampling=greedy(LONG), priority="batch")
            gate.let(steps)
            await follower.wait_for(EventKind.STEP, times=steps)
            urgent = await engine.submit(prompt_of(20), sampling=greedy(5), priority="interactive")
        await urgent
        result = await batch
        assert result.timings.parks == 1
        assert engine.stats().lanes[0].failures == 0
    assert len(result.tokens) == LONG
    # What is computed anew bears no trace of what was dropped; a full row may be, whatever was chosen.
    if park != "recompute" and steps != EDGE:
        assert shortfall(tiny_model, PROMPT, result.tokens) < ROUNDING


async def test_a_shifted_output_can_be_cancelled_and_its_cells_are_not_kept(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=1, kv=PAGED, observer=follower, open_context=intercepted(gate.pass_through)
    ) as engine:
        with gate:
            handle = await engine.submit(PROMPT, sampling=greedy(LONG))
            gate.let(LIMIT + 20)
            await follower.wait_for(EventKind.STEP, times=LIMIT + 20)
            said = list(handle._request.generated)
            handle.cancel()
        again = await engine.generate([*PROMPT, *said[:30]], sampling=greedy(5))
        fresh = await engine.generate([*PROMPT, *said[:30]], sampling=greedy(5), tenant="another")
        assert engine.stats().lanes[0].failures == 0
    assert again.usage.cached_tokens == 0
    assert again.tokens == fresh.tokens


@pytest.mark.parametrize("kv", [SHIFTING, PAGED], ids=["partitioned", "paged"])
async def test_nobody_goes_on_from_a_shifted_output(make_engine: MakeEngine, kv: KVConfig) -> None:
    async with make_engine(places=2, kv=kv) as engine:
        result = await engine.generate(PROMPT, sampling=greedy(LONG))
        again = await engine.generate(PROMPT, sampling=greedy(5))
        assert engine.stats().lanes[0].failures == 0
    assert again.usage.cached_tokens == 0
    assert again.tokens == result.tokens[:5]


async def test_an_output_that_could_have_been_shifted_and_was_not_is_kept(make_engine: MakeEngine) -> None:
    async with make_engine(places=1, kv=SHIFTING) as engine:
        stop = (await engine.generate(PROMPT, sampling=greedy(20))).text[10:14]
        first = await engine.generate(PROMPT, sampling=greedy(LONG, stop=(stop,)), tenant="another")
        second = await engine.generate([*PROMPT, *first.tokens[:-1], 70, 71], sampling=greedy(5), tenant="another")
    assert second.usage.cached_tokens >= len(PROMPT)


@pytest.mark.parametrize("kind", [Kind.RECURRENT, Kind.HYBRID])
async def test_a_model_that_cannot_shift_is_refused_at_load(
    make_engine: MakeEngine, tiny_models: Mapping[Kind, Path], kind: Kind
) -> None:
    engine = make_engine(tiny_models[kind], kv=SHIFTING)
    with pytest.raises(ConfigError, match=r"kv\.context_shift.*sliding-window attention can"):
        async with engine:
            pass
    assert engine.state is EngineState.CLOSED


async def test_more_than_half_cannot_be_kept(make_engine: MakeEngine) -> None:
    engine = make_engine(kv=SHIFTING.model_copy(update={"context_keep": LIMIT // 2}))
    with pytest.raises(ConfigError, match=f"from 0 to {LIMIT // 2}.*got {LIMIT // 2 + 1}"):
        async with engine:
            pass


def shortfall(path: Path, prompt: list[int], output: tuple[int, ...], forbidden: Collection[int] = ()) -> float:
    """Return how far the worst token was from being the likeliest in a context alone that does the same shifts."""
    options = ContextOptions(
        cells=LIMIT,
        sequences=1,
        max_step_tokens=LIMIT,
        micro_batch=LIMIT,
        threads=1,
        key_type="f32",
        value_type="f32",
        flash_attention="off",
    )
    with Model(ModelOptions(path=path)) as model:
        context, batch, sequence = Context(model, options), Batch(LIMIT), SequenceId(0)
        window, pending, worst = list(prompt), list(prompt), 0.0
        barred = [*model.vocabulary.end_of_generation, *forbidden]
        for token in output:
            batch.clear()
            batch.add(sequence, pending, context.length(sequence), output=True)
            context.decode(batch)
            logits = context.logits(batch)[0].copy()
            logits[barred] = -float("inf")
            worst = max(worst, float(logits.max() - logits[token]))
            window.append(token)
            pending = [token]
            dropped = SHIFT.dropped(len(window))
            if dropped:
                window = SHIFT.shorten(window, dropped)
                assert context.shift(sequence, SHIFT.keep, dropped)
        context.close()
    return worst

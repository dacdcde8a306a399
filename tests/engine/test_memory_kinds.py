"""Models that remember in other ways than plain attention."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from llamalane.errors import RequestCancelledError
from llamalane.scheduler import EventKind
from tests.engine.conftest import MakeEngine
from tests.engine.running import Follower, Gate, greedy, intercepted, seeded
from tests.models.tiny_gguf import BOS, Kind

pytestmark = pytest.mark.anyio

every_kind = pytest.mark.parametrize("kind", list(Kind))
without_roll_back = pytest.mark.parametrize("kind", [Kind.RECURRENT, Kind.HYBRID])

Models = Mapping[Kind, Path]

PROMPT = [BOS, *range(60, 100)]


@every_kind
async def test_requests_run_side_by_side(make_engine: MakeEngine, tiny_models: Models, kind: Kind) -> None:
    prompts = [f"prompt number {number}" for number in range(6)]
    async with make_engine(tiny_models[kind]) as engine:
        alone = [await engine.generate(prompt, sampling=greedy(16), tenant="alone") for prompt in prompts]
        handles = [await engine.submit(prompt, sampling=greedy(16), tenant="together") for prompt in prompts]
        together = [await handle for handle in handles]
    assert [result.tokens for result in together] == [result.tokens for result in alone]


@every_kind
async def test_a_second_turn_that_continues_the_first_reuses_it(
    make_engine: MakeEngine, tiny_models: Models, kind: Kind
) -> None:
    async with make_engine(tiny_models[kind]) as engine:
        first = await engine.generate(PROMPT, sampling=greedy(12))
        second_prompt = [*PROMPT, *first.tokens, *range(110, 120)]
        second = await engine.generate(second_prompt, sampling=greedy(12))
        fresh = await engine.generate(second_prompt, sampling=greedy(12), tenant="another")
    assert second.usage.cached_tokens == len(PROMPT) + 12 - 1
    assert fresh.usage.cached_tokens == 0
    assert second.tokens == fresh.tokens


@every_kind
async def test_a_prompt_that_turns_off_earlier_reuses_what_the_model_can_keep(
    make_engine: MakeEngine, tiny_models: Models, kind: Kind
) -> None:
    async with make_engine(tiny_models[kind]) as engine:
        await engine.generate(PROMPT, sampling=greedy(12))
        other_prompt = [*PROMPT[:30], *range(110, 130)]
        other = await engine.generate(other_prompt, sampling=greedy(12))
        fresh = await engine.generate(other_prompt, sampling=greedy(12), tenant="another")
    assert other.usage.cached_tokens == (0 if kind in (Kind.RECURRENT, Kind.HYBRID) else 30)
    assert other.tokens == fresh.tokens


@every_kind
async def test_the_cells_after_a_stop_string_are_not_taken_for_the_output(
    make_engine: MakeEngine, tiny_models: Models, kind: Kind
) -> None:
    async with make_engine(tiny_models[kind], places=1) as engine:
        whole = await engine.generate(PROMPT, sampling=greedy(40), tenant="one")
        stop = whole.text[12:15]
        stopped = await engine.generate(PROMPT, sampling=greedy(40, stop=(stop,)), tenant="two")
        second_prompt = [*PROMPT, *stopped.tokens, *range(110, 120)]
        second = await engine.generate(second_prompt, sampling=greedy(12), tenant="two")
        fresh = await engine.generate(second_prompt, sampling=greedy(12), tenant="three")
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert second.tokens == fresh.tokens


@every_kind
async def test_a_cancelled_request_leaves_its_place_usable(
    make_engine: MakeEngine, tiny_models: Models, kind: Kind
) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(
        tiny_models[kind], places=1, observer=follower, open_context=intercepted(gate.pass_through)
    ) as engine:
        with gate:
            handle = await engine.submit(PROMPT, sampling=greedy(100))
            gate.let(6)
            await follower.wait_for(EventKind.STEP, times=6)
            said = list(handle._request.generated)
            handle.cancel()
        with pytest.raises(RequestCancelledError):
            await handle
        second_prompt = [*PROMPT, *said, *range(110, 120)]
        second = await engine.generate(second_prompt, sampling=greedy(12))
        fresh = await engine.generate(second_prompt, sampling=greedy(12), tenant="another")
    assert second.tokens == fresh.tokens


@without_roll_back
async def test_seeds_are_kept_across_turns(make_engine: MakeEngine, tiny_models: Models, kind: Kind) -> None:
    async with make_engine(tiny_models[kind]) as engine:
        first = await engine.generate(PROMPT, sampling=seeded(5, 20))
        again = await engine.generate(PROMPT, sampling=seeded(5, 20))
    assert first.tokens == again.tokens

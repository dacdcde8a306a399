"""Outputs that have to keep to a grammar, whatever the model would rather say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import anyio
import pytest
from pydantic import BaseModel, ConfigDict, Field

from llamalane.errors import DecodeError, GrammarError, InvalidRequestError, RequestFailedError
from llamalane.ids import RequestId
from llamalane.scheduler import Engine, EventKind, FinishReason, Grammar, RequestState, SamplingParameters
from tests.engine.conftest import MakeEngine
from tests.engine.running import EXACT, Follower, Gate, greedy, intercepted, lane_threads, seeded
from tests.engine.teacher_forced import Judge, Solo, Written
from tests.engine.test_failures import failing_at
from tests.models.tiny_gguf import EOS

pytestmark = pytest.mark.anyio

PROMPT = "say something"
ENOUGH = 900
"""No output of the schemas below has more tokens."""


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Person(Closed):
    name: Annotated[str, Field(max_length=8)]
    age: Annotated[int, Field(ge=0, le=150)]
    email: Annotated[str, Field(pattern=r"^[a-z]{1,5}@[a-z]{1,5}\.org$")] | None


class Inventory(Closed):
    colour: Literal["red", "green", 'blue\n"quoted"']
    owners: Annotated[list[Person], Field(max_length=2)]
    sold: bool


class Matrix(Closed):
    rows: Annotated[list[Annotated[list[Literal[0, 1]], Field(min_length=2, max_length=2)]], Field(max_length=2)]


MODELS: tuple[type[BaseModel], ...] = (Person, Inventory, Matrix)
SAMPLINGS = (
    SamplingParameters(temperature=0, max_tokens=ENOUGH),
    *(SamplingParameters(temperature=1, seed=seed, max_tokens=ENOUGH) for seed in range(4)),
    *(SamplingParameters(temperature=9, top_k=0, top_p=1, min_p=0, seed=seed, max_tokens=ENOUGH) for seed in range(4)),
    SamplingParameters(temperature=1, seed=1, max_tokens=ENOUGH, repeat_penalty=1.3, presence_penalty=1),
    SamplingParameters(temperature=1, seed=2, max_tokens=ENOUGH, logit_bias={200: 50.0, EOS: 20.0}),
    SamplingParameters(temperature=1, seed=3, max_tokens=ENOUGH, ignore_eos=True),
)


def with_grammar(sampling: SamplingParameters, grammar: Grammar) -> SamplingParameters:
    fields = {name: getattr(sampling, name) for name in SamplingParameters.__dataclass_fields__}
    return SamplingParameters(**{**fields, "grammar": grammar})


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("model", MODELS)
async def test_every_output_fits_its_schema(make_engine: MakeEngine, model: type[BaseModel]) -> None:
    grammar = Grammar.json_schema(model.model_json_schema())
    async with make_engine() as engine:
        handles = [await engine.submit(PROMPT, sampling=with_grammar(one, grammar)) for one in SAMPLINGS]
        results = [await handle for handle in handles]
    for result in results:
        model.model_validate_json(result.text)
        assert result.finish_reason is FinishReason.STOP
    assert len({result.text for result in results}) > 5


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar.regex(r"(0|[1-9][0-9]{0,3})(\.[0-9]{2})?"), r"(0|[1-9][0-9]{0,3})(\.[0-9]{2})?"),
        (Grammar.regex("[äöü]{2,4}|😀"), "[äöü]{2,4}|😀"),
        (Grammar.choice(["a", "ab", "abc", "x😀"]), "a|ab|abc|x😀"),
        (Grammar.rules('start: item (", " item)~0..2\nitem: /[0-9]{1,2}/'), r"\d{1,2}(, \d{1,2}){0,2}"),
        (Grammar.rules('root ::= "-"? [0-9] | "none"'), "-?[0-9]|none"),
    ],
)
async def test_every_output_matches(make_engine: MakeEngine, grammar: Grammar, pattern: str) -> None:
    async with make_engine() as engine:
        handles = [await engine.submit(PROMPT, sampling=with_grammar(one, grammar)) for one in SAMPLINGS]
        results = [await handle for handle in handles]
    for result in results:
        assert re.fullmatch(pattern, result.text), result.text
        assert result.finish_reason is FinishReason.STOP
        assert result.tokens[-1] == EOS or EOS not in result.tokens


async def test_an_output_that_is_cut_off_tells_so(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        cut = await engine.generate(
            PROMPT, sampling=SamplingParameters(grammar=Grammar.regex("[a-z]{9}"), max_tokens=8)
        )
        exact = await engine.generate(
            PROMPT, sampling=SamplingParameters(grammar=Grammar.regex("[a-z]{9}"), max_tokens=9)
        )
    assert (len(cut.text), cut.finish_reason) == (8, FinishReason.LENGTH)
    # The last of nine tokens is the last letter: whether the text may end there is not asked.
    assert len(exact.text) == 9


async def test_the_end_is_allowed_only_where_the_grammar_is_complete(make_engine: MakeEngine) -> None:
    eager = {EOS: 100.0}
    grammar = Grammar.regex("[0-9]{3,9}")
    async with make_engine() as engine:
        ended = await engine.generate(PROMPT, sampling=greedy(20, grammar=grammar, logit_bias=eager))
        eager_end = await engine.generate(
            PROMPT, sampling=SamplingParameters(temperature=0, grammar=grammar, logit_bias=eager)
        )
    assert len(ended.text) == 9  # greedy() ignores the end, but where nothing else is allowed
    assert ended.finish_reason is FinishReason.STOP
    assert len(eager_end.text) == 3


async def test_stop_strings_end_an_output_before_its_grammar_does(make_engine: MakeEngine) -> None:
    sampling = SamplingParameters(temperature=0, grammar=Grammar.regex("(ab){5}"), stop=("ba",))
    async with make_engine() as engine:
        result = await engine.generate(PROMPT, sampling=sampling)
    assert (result.text, result.finish_reason) == ("a", FinishReason.STOP)


async def test_biases_that_forbid_all_that_the_grammar_allows_fail_that_request_alone(make_engine: MakeEngine) -> None:
    forbidden = {token: float("-inf") for token in range(260)}
    async with make_engine() as engine:
        other = await engine.submit(PROMPT, sampling=greedy(20))
        with pytest.raises(RequestFailedError, match="no token can be chosen"):
            await engine.generate(
                PROMPT, sampling=SamplingParameters(grammar=Grammar.regex("abc"), logit_bias=forbidden)
            )
        assert len((await other).tokens) == 20


async def test_a_grammar_that_grows_too_large_fails_that_request_alone(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        other = await engine.submit(PROMPT, sampling=greedy(20))
        with pytest.raises(GrammarError, match="too many expressions") as caught:
            await engine.generate(PROMPT, sampling=greedy(700, grammar=Grammar.regex("(a{1000}){1000}")))
        assert caught.value.param == "grammar"
        assert len((await other).tokens) == 20


async def test_choices_of_one_prompt_differ_and_can_be_had_again(make_engine: MakeEngine) -> None:
    sampling = seeded(5, 30, grammar=Grammar.regex("[a-z]{12}"))
    async with make_engine() as engine:

        async def three() -> list[str]:
            ids = [RequestId(f"{number}") for number in range(3)]
            handles = await engine.submit_choices(PROMPT, ids, sampling=sampling)
            return [(await handle).text for handle in handles]

        first = await three()
    async with make_engine() as engine:
        assert await three() == first
    assert len(set(first)) == 3
    assert all(re.fullmatch("[a-z]{12}", text) for text in first)


NAMES = "[A-Z][a-z]{2,9}( [A-Z][a-z]{2,9}){3,5}"


async def test_failures_of_the_lane_change_no_output(make_engine: MakeEngine) -> None:
    samplings = [
        greedy(80, grammar=Grammar.regex(NAMES)),
        *(seeded(seed, 80, grammar=Grammar.regex(NAMES)) for seed in range(3)),
    ]

    async def texts(engine: Engine) -> list[str]:
        handles = [await engine.submit(PROMPT, sampling=sampling) for sampling in samplings]
        return [(await handle).text for handle in handles]

    async with make_engine() as engine:
        undisturbed = await texts(engine)
    follower = Follower()
    async with make_engine(observer=follower, open_context=failing_at({5, 25}, DecodeError(-3))) as engine:
        assert await texts(engine) == undisturbed
    assert follower.count(EventKind.REQUEUED) > 0
    assert all(re.fullmatch(NAMES, text) for text in undisturbed)


@pytest.mark.parametrize("park", ["pause", "swap", "recompute"])
async def test_parking_changes_no_output(make_engine: MakeEngine, park: str) -> None:
    sampling = greedy(80, grammar=Grammar.regex(NAMES))
    async with make_engine(places=2) as engine:
        undisturbed = await engine.generate(PROMPT, sampling=sampling)
    follower, gate = Follower(), Gate()
    async with make_engine(
        places=1, observer=follower, open_context=intercepted(gate.pass_through), park=park
    ) as engine:
        with gate:
            batch = await engine.submit(PROMPT, sampling=sampling, priority="batch")
            for steps in (4, 9):
                gate.let(steps)
                await follower.wait_for(EventKind.STEP, times=steps)
                urgent = await engine.submit("urgent", sampling=greedy(3), priority="interactive", tenant=f"{steps}")
                await follower.wait_for(EventKind.ADMITTED, urgent.id)
        result = await batch
    assert result.timings.parks > 0
    assert result.text == undisturbed.text


async def test_an_output_longer_than_its_sequence_keeps_to_its_grammar(make_engine: MakeEngine) -> None:
    kv = EXACT.model_copy(update={"layout": "partitioned", "context_shift": True, "context_keep": 4})
    pattern = "([a-z]{2}-){150}[0-9]{3}"
    async with make_engine(kv=kv, open_context=failing_at({300}, DecodeError(-3))) as engine:
        result = await engine.generate(PROMPT, sampling=greedy(600, grammar=Grammar.regex(pattern)))
    assert result.timings.restarts == 1
    assert re.fullmatch(pattern, result.text)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_rows_with_a_grammar_change_nothing_for_those_beside_them(
    make_engine: MakeEngine, tiny_model: Path
) -> None:
    prompts = [f"prompt number {number}" for number in range(8)]
    sampling = seeded(3, 24)
    bounded = SamplingParameters(grammar=Grammar.regex("[a-z]{40}"), seed=1)
    async with make_engine(places=12) as engine:
        grammar_rows = [await engine.submit(PROMPT, sampling=bounded) for _ in range(4)]
        free = [await engine.submit(prompt, sampling=sampling) for prompt in prompts]
        results = [await handle for handle in free]
        assert {(await handle).finish_reason for handle in grammar_rows} == {FinishReason.STOP}
    texts = [Written(tuple(one._request.tokens), result.tokens) for one, result in zip(free, results, strict=True)]
    with Solo(tiny_model) as solo:
        judge = Judge(solo, sampling)
        verdict = judge.judge(texts, [3] * 8, judge.tolerance(texts))
    assert verdict.wrong == []
    assert verdict.tokens == 24 * 8


async def test_one_with_a_grammar_can_be_cancelled(make_engine: MakeEngine) -> None:
    follower = Follower()
    async with make_engine(observer=follower) as engine:
        endless = await engine.submit(PROMPT, sampling=greedy(900, grammar=Grammar.regex("[a-z]+")))
        await follower.wait_for(EventKind.STARTED, endless.id)
        assert any(name.endswith("-grammar_0") for name in lane_threads())
        endless.cancel()
        assert (await engine.generate(PROMPT, sampling=greedy(5))).tokens
        assert endless.state is RequestState.DONE


async def test_a_grammar_that_cannot_be_used_is_refused_on_submission(make_engine: MakeEngine) -> None:
    grammar = Grammar.json_schema({"type": "array", "uniqueItems": True})
    bad = SamplingParameters(grammar=grammar)
    messages = [{"role": "user", "content": "hi"}]
    ids = [RequestId("a"), RequestId("b")]
    async with make_engine() as engine:
        for refused in (
            engine.submit("text", sampling=bad),
            engine.submit([1, 2], sampling=bad),
            engine.submit_chat(messages, sampling=bad),
            engine.submit_choices("text", ids, sampling=bad),
            engine.submit_chat_choices(messages, ids, sampling=bad),
            engine.compile_grammar(grammar),
        ):
            with pytest.raises(InvalidRequestError, match="uniqueItems"):
                await refused
        assert len(engine.queue()) == 0
        assert (await engine.generate("text", sampling=greedy(3))).tokens


async def test_what_does_not_wait_needs_a_compiled_grammar(make_engine: MakeEngine) -> None:
    grammar = Grammar.choice(["left", "right"])
    sampling = SamplingParameters(grammar=grammar)
    async with make_engine() as engine:
        with pytest.raises(InvalidRequestError, match=r"call compile_grammar\(\)"):
            engine.submit_tokens_nowait([1, 2], sampling=sampling)
        await engine.compile_grammar(grammar)
        assert (await engine.submit_tokens_nowait([1, 2], sampling=sampling)).text in ("left", "right")


async def test_a_grammar_that_takes_long_to_compile_holds_nobody_else_up(make_engine: MakeEngine) -> None:
    sampling = SamplingParameters(grammar=Grammar.choice(["left", "right"]))
    known = SamplingParameters(grammar=Grammar.choice(["known"]))
    done: list[str] = []
    async with make_engine() as engine:
        await engine.generate(PROMPT, sampling=known)

        async def choose() -> None:
            done.append((await engine.generate(PROMPT, sampling=sampling)).text)

        async with anyio.create_task_group() as tasks:
            assert engine._running is not None
            with engine._running.machinery.model.grammars._compiling:  # as if it were compiling something else
                tasks.start_soon(choose)
                assert (await engine.generate(PROMPT, sampling=greedy(9))).tokens
                assert (await engine.generate(PROMPT, sampling=known)).text == "known"
                assert not done
    assert done[0] in ("left", "right")

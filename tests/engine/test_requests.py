"""Requests as a client makes them: text in, text out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from llamalane.errors import UnknownModelError
from llamalane.ids import Level, RequestId
from llamalane.scheduler import EventKind, FinishReason, RequestHandle, RequestState, SamplingParameters
from llamalane.streams.llama import Detokenizer, Model, ModelOptions
from tests.engine.conftest import MakeEngine
from tests.engine.running import LIMIT, PART, Follower, Gate, greedy, intercepted, seeded, tokens_of
from tests.engine.teacher_forced import Solo
from tests.models.tiny_gguf import BOS, EOS

pytestmark = pytest.mark.anyio

PROMPT = "the quick brown fox"


async def collect(handle: RequestHandle) -> list[str]:
    return [piece async for piece in handle]


async def test_the_answer_is_what_the_model_alone_would_say(make_engine: MakeEngine, tiny_model: Path) -> None:
    async with make_engine() as engine:
        result = await engine.generate(PROMPT, sampling=greedy(24))
    with Solo(tiny_model) as solo:
        prompt = tokens_of(PROMPT)
        tokens = solo.likeliest_tokens(prompt, 24, forbidden=[EOS])
        detokenizer = Detokenizer(solo.model.vocabulary.pieces)
        text = "".join(detokenizer.add(token) for token in tokens) + detokenizer.flush()
    assert list(result.tokens) == tokens
    assert result.text == text
    assert result.finish_reason is FinishReason.LENGTH
    assert result.usage.prompt_tokens == len(prompt)
    assert result.usage.completion_tokens == 24


async def test_text_comes_in_pieces_that_make_up_the_result(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        handle = await engine.submit(PROMPT, sampling=greedy(40))
        pieces = await collect(handle)
        result = await handle
        assert await handle.result() is result
    assert len(pieces) > 1
    assert all(pieces)
    assert "".join(pieces) == result.text
    assert handle.state is RequestState.DONE
    assert await collect(handle) == [], "text that was taken came again"


async def test_one_task_may_iterate_while_another_awaits(make_engine: MakeEngine) -> None:
    texts: list[str] = []
    async with make_engine() as engine:
        handle = await engine.submit(PROMPT, sampling=greedy(40))

        async def iterate() -> None:
            texts.append("".join(await collect(handle)))

        async def wait() -> None:
            texts.append((await handle).text)

        async with anyio.create_task_group() as tasks:
            for task in (iterate, wait, wait):
                tasks.start_soon(task)
    assert len(texts) == 3
    assert len(set(texts)) == 1


async def test_several_iterators_share_the_text(make_engine: MakeEngine) -> None:
    pieces: list[str] = []
    async with make_engine() as engine:
        handle = await engine.submit(PROMPT, sampling=greedy(40))

        async def iterate() -> None:
            async for piece in handle:
                pieces.append(piece)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(iterate)
        assert "".join(pieces) == (await handle).text


async def test_an_iteration_may_be_broken_off(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        handle = await engine.submit(PROMPT, sampling=greedy(40))
        taken = []
        async for piece in handle:
            taken.append(piece)
            break
        rest = await collect(handle)
        result = await handle
    assert "".join(taken + rest) == result.text


async def test_text_and_tokens_are_the_same_prompt(make_engine: MakeEngine) -> None:
    tokens = tokens_of(PROMPT)
    async with make_engine() as engine:
        as_text = await engine.generate(PROMPT, sampling=greedy())
        as_tokens = await engine.generate(tokens, sampling=greedy())
        at_once = await engine.submit_tokens_nowait(tokens, sampling=greedy())
    assert as_text.text == as_tokens.text == at_once.text
    assert as_text.usage.prompt_tokens == len(tokens)


async def test_a_prompt_gets_one_bos_token(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        plain = await engine.submit("abc", sampling=greedy())
        with_name = await engine.submit("<s>abc", sampling=greedy())
        assert plain.prompt_tokens == with_name.prompt_tokens == 4
        assert (await plain).text == (await with_name).text


async def test_a_chat_is_written_by_the_model_s_own_template(make_engine: MakeEngine) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    async with make_engine() as engine:
        chat = await engine.chat(messages, sampling=greedy())
        handle = await engine.submit_chat(messages, sampling=greedy())
        written = await engine.generate("<s>[system]Be brief.</s>[user]Hello</s>[assistant]", sampling=greedy())
        assert chat.text == written.text == (await handle).text
        expected = 3 + len("[system]Be brief.[user]Hello[assistant]")
        assert chat.usage.prompt_tokens == written.usage.prompt_tokens == handle.prompt_tokens == expected


async def test_a_long_text_is_tokenized_like_a_short_one(make_engine: MakeEngine) -> None:
    """Long texts are tokenized beside the event loop; here the names of tokens make few tokens of one."""
    async with make_engine(part=2048) as engine:
        handle = await engine.submit("a" + "<unk>" * 1000 + "b", sampling=greedy(4))
        assert handle.prompt_tokens == 1003
        as_tokens = [*tokens_of("a"), *[0] * 1000, ord("b") + 3]
        assert (await handle).tokens == (await engine.generate(as_tokens, sampling=greedy(4))).tokens


async def test_the_same_seed_gives_the_same_output(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        first, again, other = [await engine.generate(PROMPT, sampling=seeded(seed, 32)) for seed in (7, 7, 8)]
        chosen = await engine.generate(PROMPT, sampling=seeded(None, 32))
        repeated = await engine.generate(PROMPT, sampling=seeded(chosen.seed, 32))
        other_choice = await engine.generate(PROMPT, sampling=seeded(7, 32), choice=1)
    assert first.seed == again.seed == 7
    assert first.tokens == again.tokens
    assert other.tokens != first.tokens
    assert chosen.tokens == repeated.tokens
    assert other_choice.tokens != first.tokens


async def test_requests_without_a_seed_get_different_ones(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        handles = [await engine.submit(PROMPT, sampling=seeded(None, 2)) for _ in range(4)]
        assert len({handle.seed for handle in handles}) == 4
        for handle in handles:
            assert (await handle).seed == handle.seed


@pytest.mark.parametrize("max_tokens", [1, 2, 17])
async def test_max_tokens_is_kept(make_engine: MakeEngine, max_tokens: int) -> None:
    async with make_engine() as engine:
        result = await engine.generate(PROMPT, sampling=greedy(max_tokens))
    assert len(result.tokens) == result.usage.completion_tokens == max_tokens
    assert result.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("max_tokens", [None, LIMIT])
async def test_an_output_ends_when_its_sequence_is_full(make_engine: MakeEngine, max_tokens: int | None) -> None:
    async with make_engine() as engine:
        prompt = [BOS] * 200
        sampling = SamplingParameters(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        result = await engine.generate(prompt, sampling=sampling)
        longest = await engine.generate([BOS] * (LIMIT - 1), sampling=sampling)
    assert len(result.tokens) == LIMIT - 200
    assert len(longest.tokens) == 1
    assert result.finish_reason is longest.finish_reason is FinishReason.LENGTH


async def test_a_stop_string_ends_the_output(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        whole = (await engine.generate(PROMPT, sampling=greedy(48))).text
        stop = whole[20:24]
        handle = await engine.submit(PROMPT, sampling=greedy(48, stop=(stop, "not in it at all")))
        pieces = await collect(handle)
        result = await handle
    assert result.text == "".join(pieces) == whole[: whole.index(stop)]
    assert result.finish_reason is FinishReason.STOP
    assert result.stop == stop
    assert result.usage.completion_tokens == len(result.tokens) < 48


async def test_the_model_may_end_its_output(make_engine: MakeEngine) -> None:
    ends = SamplingParameters(temperature=0, max_tokens=20, logit_bias={EOS: 100})
    async with make_engine() as engine:
        result = await engine.generate(PROMPT, sampling=ends)
        drawn = await engine.generate(PROMPT, sampling=SamplingParameters(max_tokens=20, logit_bias={EOS: 100}))
        ignored = await engine.generate(PROMPT, sampling=greedy(20, logit_bias={EOS: 100}))
    assert (result.text, result.tokens, result.finish_reason) == ("", (EOS,), FinishReason.STOP)
    assert drawn.tokens == (EOS,)
    assert result.usage.completion_tokens == 1
    assert len(ignored.tokens) == 20
    assert EOS not in ignored.tokens


@pytest.mark.parametrize("sampling", [greedy, functools.partial(seeded, 1)])
async def test_a_bias_forces_or_forbids_a_token(
    make_engine: MakeEngine, sampling: Callable[..., SamplingParameters]
) -> None:
    letter = ord("q") + 3
    async with make_engine() as engine:
        plain = await engine.generate(PROMPT, sampling=sampling(20))
        forced = await engine.generate(PROMPT, sampling=sampling(20, logit_bias={letter: 100}))
        unwanted = plain.tokens[0]
        without = await engine.generate(
            PROMPT,
            sampling=sampling(20, logit_bias={unwanted: float("-inf")}),
        )
    assert forced.text == "q" * 20
    assert unwanted not in without.tokens


async def test_a_second_turn_reuses_the_cells_of_the_first(make_engine: MakeEngine) -> None:
    first_prompt = [BOS, *range(50, 90)]
    async with make_engine() as engine:
        first = await engine.generate(first_prompt, sampling=greedy(), tenant="one")
        second_prompt = [*first_prompt, *first.tokens, *range(90, 100)]
        foreign = await engine.generate(second_prompt, sampling=greedy(), tenant="two")
        second = await engine.generate(second_prompt, sampling=greedy(), tenant="one")
        anonymous = await engine.generate(second_prompt, sampling=greedy())
        assert engine.stats().counters.cached_tokens == second.usage.cached_tokens
    assert first.usage.cached_tokens == foreign.usage.cached_tokens == anonymous.usage.cached_tokens == 0
    # The first output's last token was chosen, but not computed.
    assert second.usage.cached_tokens == len(first_prompt) + len(first.tokens) - 1
    assert second.tokens == foreign.tokens == anonymous.tokens


async def test_concurrent_requests_do_not_mix(make_engine: MakeEngine) -> None:
    prompts = [f"prompt number {number}" for number in range(12)]
    async with make_engine(places=8) as engine:
        alone = [(await engine.generate(prompt, sampling=greedy(24))).text for prompt in prompts]
        handles = [await engine.submit(prompt, sampling=greedy(24)) for prompt in prompts]
        together = [(await handle).text for handle in handles]
    assert together == alone
    assert len(set(alone)) == len(alone), "the test would not notice"


async def test_a_request_has_the_priority_it_names(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        levels = {None: 3, 1: 1, "4": 4, "interactive": 1, "batch": 5}
        for priority, level in levels.items():
            handle = await engine.submit(PROMPT, priority=priority, sampling=greedy(1))
            assert handle.level == level
            assert (await handle).level == level


async def test_urgent_requests_go_first(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=1, max_parks=0, observer=follower, open_context=intercepted(gate.pass_through)
    ) as engine:
        with gate:
            first = await engine.submit(PROMPT, sampling=greedy(2))
            await follower.wait_for(EventKind.ADMITTED, first.id)
            patient = await engine.submit(PROMPT, sampling=greedy(2), priority="batch")
            urgent = await engine.submit(PROMPT, sampling=greedy(2), priority="interactive")
        for handle in (first, patient, urgent):
            await handle
    admitted = [event.request for event in follower.events if event.kind is EventKind.ADMITTED]
    assert admitted == [first.id, urgent.id, patient.id]


async def test_an_urgent_request_has_its_rows_in_the_step_after_the_one_under_way(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(
        places=4, observer=follower, reserve={"interactive": 1}, open_context=intercepted(gate.pass_through)
    ) as engine:
        with gate:
            batch = [await engine.submit(f"batch {number}", sampling=greedy(50), priority=5) for number in range(9)]
            gate.let(6)
            await follower.wait_for(EventKind.STEP, times=6)  # the 7th is held, or about to be
            assert engine.stats().free_places == 1
            urgent = await engine.submit("abc", sampling=greedy(4), priority=1)
            await follower.wait_for(EventKind.ADMITTED, urgent.id)
            gate.let(2)
            await follower.wait_for(EventKind.STARTED, urgent.id)
        started = next(
            event for event in follower.events if event.kind is EventKind.STARTED and event.request == urgent.id
        )
        assert started.step <= 8, "more than one step began in between"
        for handle in [urgent, *batch]:
            await handle


async def test_a_request_keeps_the_id_it_was_given(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        named = await engine.submit(PROMPT, sampling=greedy(1), request_id=RequestId("mine"))
        others = [await engine.submit(PROMPT, sampling=greedy(1)) for _ in range(3)]
        assert named.id == (await named).id == "mine"
        assert len({handle.id for handle in others}) == 3
        for handle in others:
            await handle
        again = await engine.generate(PROMPT, sampling=greedy(1), request_id=RequestId("mine"))
        assert again.id == "mine"


async def test_events_tell_the_story_of_a_request(make_engine: MakeEngine) -> None:
    follower = Follower()
    async with make_engine(observer=follower) as engine:
        result = await engine.generate(PROMPT, sampling=greedy(3))
    assert [kind.value for kind in follower.kinds(result.id)] == ["accepted", "admitted", "started", "ended"]
    steps = [event.step for event in follower.events if event.kind.value == "step"]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 3
    times = [event.time for event in follower.events if event.request]
    assert times == sorted(times)


async def test_timings_add_up(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        timings = (await engine.generate(PROMPT, sampling=greedy(8))).timings
    assert 0 <= timings.wait <= timings.first_token <= timings.total < 60
    assert (timings.lane, timings.restarts) == ("lane-0", 0)


async def test_statistics_show_what_is_going_on(make_engine: MakeEngine) -> None:
    gate, follower = Gate(), Follower()
    async with make_engine(places=2, observer=follower, open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            handles = [await engine.submit("abc", sampling=greedy(4), priority=level) for level in (1, 5, 5, 5)]
            await follower.wait_for(EventKind.ADMITTED, times=2)
            busy = engine.stats()
            assert (busy.places, busy.free_places) == (2, 0)
            assert {level: count for level, count in busy.waiting.items() if count} == {Level(5): 2}
            assert busy.waiting_tokens == 8
            assert dict(busy.running) == {Level(1): 1, Level(5): 1}
            assert busy.lanes[0].running == 2
            assert busy.lanes[0].reserved_cells == 2 * (4 + 4)
        for handle in handles:
            await handle
        idle = engine.stats()
    assert (idle.free_places, idle.waiting_tokens) == (2, 0)
    lane = idle.lanes[0]
    assert (lane.name, lane.kind, lane.priority_enforced) == ("lane-0", "cpu", False)
    assert (lane.serving, lane.down, lane.failures, lane.running, lane.reserved_cells) == (True, False, 0, 0, 0)
    assert lane.places == 2
    assert lane.cells == 2 * PART
    assert lane.steps >= 8
    assert lane.kept_cells > 0
    assert lane.decode_seconds > 0
    counters = idle.counters
    assert counters.admitted == counters.finished == 4
    assert (counters.prompt_tokens, counters.completion_tokens) == (16, 16)
    assert counters.cancelled == counters.failed == counters.expired == counters.restarts == 0
    assert busy.counters.finished == 0, "a snapshot changed afterwards"


async def test_the_model_is_described(make_engine: MakeEngine, tiny_model: Path) -> None:
    async with make_engine() as engine:
        info = engine.model_info
        assert engine.limit == info.limit == LIMIT
        assert (engine.model_name, engine.model_names) == ("tiny", ("tiny", "also-tiny"))
        engine.check_model("also-tiny")
        with pytest.raises(UnknownModelError) as caught:
            engine.check_model("huge")
        assert caught.value.known == ("tiny", "also-tiny")
    with Model(ModelOptions(path=tiny_model)) as model:
        assert info.vocabulary_size == model.vocabulary.size
        assert (info.train_context, info.parameters, info.bytes) == (
            model.train_context,
            model.parameters,
            model.bytes,
        )

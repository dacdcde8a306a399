"""What can never be served is refused before it waits, and nobody else notices."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from llamalane.errors import (
    ChatTemplateError,
    InvalidPriorityError,
    InvalidRequestError,
    PromptTooLongError,
    RequestError,
)
from llamalane.scheduler import Engine, EventKind, SamplingParameters
from tests.engine.conftest import MakeEngine
from tests.engine.running import LIMIT, SPACE, Follower, Gate, greedy, intercepted

pytestmark = pytest.mark.anyio

PROMPT = "the quick brown fox"

BAD: dict[str, tuple[dict[str, Any], type[RequestError], str | None]] = {
    "an empty prompt of tokens": ({"prompt": []}, InvalidRequestError, "prompt"),
    "too many tokens": ({"prompt": [5] * LIMIT}, PromptTooLongError, "prompt"),
    "too long a text": ({"prompt": "x" * LIMIT}, PromptTooLongError, "prompt"),
    "half a character": ({"prompt": "a\ud800"}, InvalidRequestError, "prompt"),
    "a negative token": ({"prompt": [5, -1]}, InvalidRequestError, "prompt"),
    "a token past the vocabulary": ({"prompt": [SPACE + 1]}, InvalidRequestError, "prompt"),
    "a huge token": ({"prompt": [2**40]}, InvalidRequestError, "prompt"),
    "a fraction of a token": ({"prompt": [1.5]}, InvalidRequestError, "prompt"),
    "a priority out of range": ({"priority": 0}, InvalidPriorityError, "priority"),
    "an unknown priority": ({"priority": "royal"}, InvalidPriorityError, "priority"),
    "huge max_tokens": ({"sampling": SamplingParameters(max_tokens=LIMIT + 1)}, InvalidRequestError, "max_tokens"),
    "no time": ({"deadline": 0}, InvalidRequestError, "deadline"),
    "less than no time": ({"deadline": -1.0}, InvalidRequestError, "deadline"),
    "no number of seconds": ({"deadline": math.nan}, InvalidRequestError, "deadline"),
    "time without end": ({"deadline": math.inf}, InvalidRequestError, "deadline"),
    "a deadline in words": ({"deadline": "soon"}, InvalidRequestError, "deadline"),
    "a truth for a deadline": ({"deadline": True}, InvalidRequestError, "deadline"),
    "a tenant without a name": ({"tenant": None}, InvalidRequestError, "tenant"),
    "a key that is none": ({"supersede": 5}, InvalidRequestError, "supersede"),
    "an id that is none": ({"request_id": 7}, InvalidRequestError, "request_id"),
    "sampling as a mapping": ({"sampling": {"max_tokens": 3}}, InvalidRequestError, "sampling"),
    "a bias for no token": (
        {"sampling": SamplingParameters(logit_bias={SPACE + 1: 1.0})},
        InvalidRequestError,
        "logit_bias",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_is_refused_and_disturbs_nobody(make_engine: MakeEngine, name: str) -> None:
    options, error, param = BAD[name]
    gate, follower = Gate(), Follower()
    async with make_engine(observer=follower, open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            gate.let(40)
            undisturbed = await engine.generate(PROMPT, sampling=greedy(20), tenant="one")
            neighbour = await engine.submit(PROMPT, sampling=greedy(20), tenant="two")
            await follower.wait_for(EventKind.STARTED, neighbour.id)
            for submit in (engine.submit, submit_now(engine)):
                if submit is engine.submit or not isinstance(options.get("prompt", ""), str):
                    with pytest.raises(error) as caught:
                        await submit(options.get("prompt", [5]), **{k: v for k, v in options.items() if k != "prompt"})
                    assert caught.value.param == param
            assert engine.stats().waiting_tokens == 0
            gate.open()
            assert (await neighbour).text == undisturbed.text
        assert follower.count(EventKind.ACCEPTED) == 2


def submit_now(engine: Engine) -> Callable[..., Awaitable[object]]:
    async def submit(prompt: list[int], **options: Any) -> object:
        return engine.submit_tokens_nowait(prompt, **options)

    return submit


async def test_a_prompt_too_long_is_refused_with_both_numbers(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        for prompt in ([5] * LIMIT, "x" * (LIMIT - 1)):
            with pytest.raises(PromptTooLongError, match=rf"{LIMIT} tokens.*holds {LIMIT}") as caught:
                await engine.submit(prompt)
            error = caught.value
            assert (error.prompt_tokens, error.limit, error.at_least) == (LIMIT, LIMIT, False)
        longest = await engine.generate("x" * (LIMIT - 2), sampling=greedy(1))
    assert longest.usage.prompt_tokens == LIMIT - 1


async def test_a_prompt_of_10_megabytes_is_refused_before_it_is_tokenized(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        with pytest.raises(PromptTooLongError, match="at least") as caught:
            await engine.submit("x" * 10_000_000)
        # Exact once it is tokenized, so that a lower bound tells that it was not.
        assert caught.value.at_least
        assert LIMIT < caught.value.prompt_tokens < 10_000_000
        with pytest.raises(PromptTooLongError) as caught:
            await engine.submit_chat([{"role": "user", "content": "x" * 10_000_000}])
        assert caught.value.at_least


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "pirate", "content": "Arr"}],
    ],
)
async def test_messages_that_the_template_refuses_are_refused(make_engine: MakeEngine, messages: list[Any]) -> None:
    async with make_engine() as engine:
        with pytest.raises(ChatTemplateError) as caught:
            await engine.submit_chat(messages)
        assert caught.value.param == "messages"


async def test_a_model_without_a_template_says_so(make_engine: MakeEngine, tiny_models: dict[str, Any]) -> None:
    async with make_engine(tiny_models["dense"]) as engine:
        with pytest.raises(ChatTemplateError, match="no chat template"):
            await engine.submit_chat([{"role": "user", "content": "Hello"}])
        assert (await engine.generate(PROMPT, sampling=greedy(2))).text


async def test_a_refused_request_leaves_its_slot_in_the_queue(make_engine: MakeEngine) -> None:
    async with make_engine(queue={"max_requests": 1}) as engine:
        for _ in range(5):
            with pytest.raises(PromptTooLongError):
                await engine.submit([5] * LIMIT)
            with pytest.raises(InvalidPriorityError):
                await engine.submit(PROMPT, priority=9)
        assert await engine.generate(PROMPT, sampling=greedy(1))


@pytest.mark.parametrize("name", ["same", "other"])
async def test_two_requests_cannot_have_one_id(make_engine: MakeEngine, name: str) -> None:
    gate = Gate()
    async with make_engine(open_context=intercepted(gate.pass_through)) as engine:
        with gate:
            first = await engine.submit(PROMPT, sampling=greedy(4), request_id=cast(Any, "same"))
            if name == "same":
                with pytest.raises(InvalidRequestError, match="same") as caught:
                    await engine.submit(PROMPT, sampling=greedy(4), request_id=cast(Any, name))
                assert caught.value.param == "request_id"
            else:
                await engine.submit(PROMPT, sampling=greedy(4), request_id=cast(Any, name))
        await first

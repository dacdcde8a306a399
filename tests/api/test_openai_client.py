"""The real OpenAI client, over a real socket, on the real engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import anyio.to_thread
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import SecretStr

from llamalane.api import ApiConfig, create_app
from llamalane.api.config import ServerConfig
from llamalane.errors import QueueFullError
from llamalane.scheduler import LaneConfig, ModelConfig, StreamsConfig
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.serving import served

KEY = "sesame"
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": [{"type": "text", "text": "Say hi"}]},
]


@pytest.fixture(scope="module")
def client(tiny_model: Path) -> Iterator[openai.OpenAI]:
    config = ServerConfig(
        models=[ModelConfig(path=tiny_model, name="tiny", aliases=["gpt-4o-mini"])],
        streams=StreamsConfig(lanes=[LaneConfig(places=4)]),
        api=ApiConfig(api_key=SecretStr(KEY)),
    )
    with served(create_app(config)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        # While the model loads the answer is 503, which the client tries again.
        client.with_options(max_retries=20).models.list()
        yield client


def test_models(client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert (model.id, model.owned_by) == ("tiny", "llamalane")
    assert client.models.retrieve("gpt-4o-mini").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_a_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="gpt-4o-mini", messages=MESSAGES, max_completion_tokens=5, n=2)
    assert answer.model == "tiny"
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.message.role == "assistant"
        assert choice.message.content is not None
        assert choice.finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None


def test_a_seed_repeats_an_answer_streamed_or_not(client: openai.OpenAI) -> None:
    def once() -> str | None:
        answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12, seed=5)
        return answer.choices[0].message.content

    events = list(
        client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_tokens=12,
            seed=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert len({event.id for event in events}) == 1
    assert events[0].choices[0].delta.role == "assistant"
    assert [choice.finish_reason for event in events for choice in event.choices][-1] in ("stop", "length")
    assert events[-1].choices == []
    assert events[-1].usage is not None
    assert 0 < events[-1].usage.completion_tokens <= 12
    assert all(event.usage is None for event in events[:-1])
    text = "".join(choice.delta.content or "" for event in events for choice in event.choices)
    assert text == once() == once()


def test_completions(client: openai.OpenAI) -> None:
    def tokens_of(prompt: str | list[str] | list[int] | list[list[int]]) -> list[int]:
        answer = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=3, temperature=0, logit_bias={"5": -100}, extra_body={"top_k": 5}
        )
        assert answer.usage is not None
        return [len(answer.choices), answer.usage.prompt_tokens]

    one, two = tokens_of("abc"), tokens_of(["abc", "defg"])
    assert one[0] == 1
    assert two[0] == 2
    assert two[1] > one[1] > 1
    assert tokens_of([1, 2, 3]) == [1, 3]
    assert tokens_of([[1, 2, 3], [4]]) == [2, 4]


def test_a_stream_of_several_choices(client: openai.OpenAI) -> None:
    texts, finishes = ["", "", ""], [""] * 3
    for event in client.completions.create(
        model="tiny", prompt="once", max_tokens=6, n=3, stream=True, extra_body={"ignore_eos": True}
    ):
        for choice in event.choices:
            texts[choice.index] += choice.text
            finishes[choice.index] = choice.finish_reason or finishes[choice.index]
    assert finishes == ["length"] * 3
    assert all(texts)


def test_many_clients_at_once(client: openai.OpenAI) -> None:
    def one(number: int) -> int:
        priority = 1 + number % 5
        stream = client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=8, stream=True, extra_body={"priority": priority}
        )
        return len(list(stream))

    with ThreadPoolExecutor(24) as threads:
        assert all(count >= 2 for count in threads.map(one, range(24)))


def test_priority_and_tier(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, max_tokens=1, service_tier="priority"
    )
    assert raw.headers["x-priority"] == "1"
    assert raw.parse().service_tier == "priority"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="x", extra_body={"priority": 0})
    assert caught.value.param == "priority"


def test_bad_requests_harm_nobody_else(client: openai.OpenAI) -> None:
    for fields, param, code in (
        ({"prompt": ""}, "prompt", None),
        ({"prompt": "x" * 10_000_000}, "prompt", "context_length_exceeded"),
        ({"prompt": [0] * 100_000}, "prompt", "context_length_exceeded"),
        ({"prompt": [10**9]}, "prompt", None),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens", None),
        ({"prompt": "x", "max_tokens": 10**12}, "max_tokens", None),
        ({"prompt": "x", "temperature": "hot"}, "temperature", None),
        ({"prompt": "x", "logit_bias": {"999999999": 1}}, "logit_bias", None),
        ({"prompt": "x", "priority": "sometime"}, "priority", "invalid_priority"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.post("/completions", body=fields, cast_to=object)
        assert (caught.value.param, caught.value.code) == (param, code)
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-9", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    assert client.completions.create(model="tiny", prompt="x", max_tokens=1).choices


def test_the_client_tries_again_after_the_time_that_a_full_queue_names() -> None:
    full = Play(refusal=QueueFullError(0.6, reason="requests", limit=1))
    engine = ScriptedEngine([full, Play(["after all"])])
    with (
        served(create_app(as_engine(engine))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=1) as client,
    ):
        begin = time.monotonic()
        answer = client.completions.create(model="scripted", prompt="x")
        assert answer.choices[0].text == "after all"
        assert time.monotonic() - begin >= 1
        engine.plays.extend([full, full])
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="scripted", prompt="x", stream=True)
        assert caught.value.response.headers["retry-after"] == "1"
        assert caught.value.type == "rate_limit_error"


def test_an_error_in_a_stream_reaches_the_client() -> None:
    engine = ScriptedEngine([Play(["one"], error=QueueFullError(1, reason="requests", limit=1))])
    with (
        served(create_app(as_engine(engine))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client,
    ):
        stream = client.completions.create(model="scripted", prompt="x", stream=True)
        assert next(stream).choices[0].text == "one"
        with pytest.raises(openai.APIError, match="queue is full"):
            next(stream)


class Endless(Play):
    """Says one word, and nothing more."""

    def __init__(self) -> None:
        super().__init__(["one", "two"], release=anyio.Event(), before_release=1)


@pytest.fixture
def endless() -> Iterator[tuple[ScriptedEngine, str]]:
    """An engine whose first requests never end, and its address."""
    engine = ScriptedEngine([Endless() for _ in range(3)])
    with served(create_app(as_engine(engine))) as url:
        yield engine, f"{url}/v1"


def test_a_client_that_lost_its_patience_leaves_nothing_behind(endless: tuple[ScriptedEngine, str]) -> None:
    engine, url = endless
    with openai.OpenAI(base_url=url, api_key="none", timeout=1.0, max_retries=1) as client:
        with pytest.raises(openai.APITimeoutError):
            client.completions.create(model="scripted", prompt="x")
        for handle in engine.handles:
            assert handle.gone.wait(10)
        assert [handle.cancelled for handle in engine.handles] == [1, 1], "it asks once more by itself"
        stream = client.completions.create(model="scripted", prompt="x", stream=True)
        with pytest.raises(openai.APITimeoutError):
            list(stream)
        assert engine.handles[2].gone.wait(10)
        assert client.completions.create(model="scripted", prompt="x").choices[0].text == "Hello, world"


def test_closing_a_stream_cancels_its_request(endless: tuple[ScriptedEngine, str]) -> None:
    engine, url = endless
    with openai.OpenAI(base_url=url, api_key="none") as client:
        with client.completions.create(model="scripted", prompt="x", stream=True) as stream:
            assert next(stream).choices[0].text == "one"
        assert engine.handles[0].gone.wait(10)


@pytest.mark.anyio
async def test_cancelling_the_task_of_a_client_cancels_its_request(endless: tuple[ScriptedEngine, str]) -> None:
    engine, url = endless
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, client)
            assert await anyio.to_thread.run_sync(engine.taken.wait, 10)
            tasks.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(engine.handles[0].gone.wait, 10)


async def ask(client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(model="scripted", messages=MESSAGES)

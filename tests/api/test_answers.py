"""What goes over the wire, to the letter."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from llamalane.api import ApiConfig, create_app
from llamalane.errors import QueueFullError
from llamalane.ids import Level
from llamalane.scheduler import FinishReason
from tests.api.asgi import client_of, exchange
from tests.api.fake_engine import Play, ScriptedEngine, as_engine, prompts_of, sampling_of

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


async def post(engine: ScriptedEngine, path: str, **body: Any) -> Any:
    """Return the answer's body, without the fields that differ from one request to the next."""
    async with client_of(create_app(as_engine(engine))) as client:
        answer = await client.post(path, json={"seed": 7, **body})
        assert answer.status_code == 200, answer.text
        fields = answer.json()
        assert fields.pop("id").startswith("cmpl-" if path == COMPLETIONS else "chatcmpl-")
        assert isinstance(fields.pop("created"), int)
        return fields


async def stream(engine: ScriptedEngine, path: str, **body: Any) -> list[Any]:
    """Return the chunks of a stream, without what all of them have in common."""
    async with client_of(create_app(as_engine(engine))) as client:
        answer = await client.post(path, json={"seed": 7, **body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = answer.text.split("\n\n")
        assert events.pop() == ""
        assert events.pop() == "data: [DONE]"
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        for name in ("id", "object", "created", "model", "priority"):
            assert len({chunk.pop(name) for chunk in chunks}) == 1
        return chunks


async def test_a_completion() -> None:
    assert await post(ScriptedEngine([Play(cached_tokens=2)]), COMPLETIONS, prompt="x") == {
        "object": "text_completion",
        "model": "scripted",
        "priority": 3,
        "choices": [{"index": 0, "text": "Hello, world", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
        "seed": 7,
        "timings": {"wait_ms": 250.0, "first_token_ms": 500.0, "total_ms": 1500.0, "parks": 0, "handovers": 1},
    }


async def test_a_chat_completion() -> None:
    fields = await post(ScriptedEngine([Play(finish=FinishReason.LENGTH)]), CHAT, messages=MESSAGES, model="other")
    assert fields["object"] == "chat.completion"
    assert fields["model"] == "scripted"
    assert fields["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]


async def test_a_stream_of_chat_chunks() -> None:
    def choice(delta: dict[str, str], finish: str | None = None) -> list[Any]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]

    assert await stream(ScriptedEngine(), CHAT, messages=MESSAGES) == [
        {"choices": choice({"role": "assistant", "content": ""})},
        {"choices": choice({"content": "Hello"})},
        {"choices": choice({"content": ", world"})},
        {
            "choices": choice({}, "stop"),
            "seed": 7,
            "timings": {"wait_ms": 250.0, "first_token_ms": 500.0, "total_ms": 1500.0, "parks": 0, "handovers": 1},
        },
    ]


async def test_a_stream_of_completion_chunks_with_usage() -> None:
    chunks = await stream(ScriptedEngine(), COMPLETIONS, prompt="x", stream_options={"include_usage": True})
    texts = [
        {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        for text, finish in (("Hello", None), (", world", None), ("", "stop"))
    ]
    assert chunks[:-1] == [{"choices": [choice], "usage": None} for choice in texts]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 5
    assert chunks[-1]["timings"]["total_ms"] == 1500.0


@pytest.mark.parametrize("text", ['quotes " and \\', "line\nbreak\r\n\n", "grüße 🦙", "\x00\u2028", "data: [DONE]\n\n"])
async def test_any_text_survives_a_stream(text: str) -> None:
    chunks = await stream(ScriptedEngine([Play([text])]), COMPLETIONS, prompt="x")
    assert chunks[0]["choices"][0]["text"] == text


async def test_an_output_without_text_still_has_its_role_and_its_end() -> None:
    chunks = await stream(ScriptedEngine([Play([])]), CHAT, messages=MESSAGES)
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": ""}, {}]


async def test_choices_are_told_apart_by_choice_and_prompt() -> None:
    engine = ScriptedEngine([Play([str(number)]) for number in range(4)])
    fields = await post(engine, COMPLETIONS, prompt=["a", "b"], n=2)
    assert [(choice["index"], choice["text"]) for choice in fields["choices"]] == [
        *((0, "0"), (1, "1"), (2, "2"), (3, "3"))
    ]
    assert prompts_of(engine.handles) == ["a", "a", "b", "b"]
    assert [handle.options["choice"] for handle in engine.handles] == [0, 1, 0, 1]
    assert len({handle.id for handle in engine.handles}) == 4
    assert fields["usage"]["prompt_tokens"] == 6  # each prompt once
    assert fields["usage"]["completion_tokens"] == 4


async def test_all_choices_have_the_seed_that_the_answer_tells() -> None:
    engine = ScriptedEngine()
    fields = await post(engine, COMPLETIONS, prompt="x", n=3, seed=None)
    assert [sampling_of(handle).seed for handle in engine.handles] == [fields["seed"]] * 3
    assert (await post(ScriptedEngine(), COMPLETIONS, prompt="x", n=2, seed=5))["seed"] == 5


async def test_choices_of_a_stream_are_interleaved() -> None:
    held = anyio.Event()
    engine = ScriptedEngine([Play(["a1", "a2"], release=held, before_release=1), Play(["b1", "b2"])])
    app = create_app(as_engine(engine))
    async with exchange(app, COMPLETIONS, {"prompt": "x", "n": 2, "stream": True}) as request:
        await request.next()
        chunks = [json.loads((await request.body())[6:]) for _ in range(4)]
        assert not any("timings" in chunk for chunk in chunks)
        first = [chunk["choices"][0] for chunk in chunks]
        assert sorted((choice["index"], choice["text"]) for choice in first) == [
            *((0, "a1"), (1, ""), (1, "b1"), (1, "b2"))
        ]
        held.set()
        rest = b"".join([await request.body() for _ in range(3)])
        assert b"a2" in rest
        assert rest.count(b"timings") == 1
        assert rest.endswith(b"data: [DONE]\n\n")


async def test_the_priority_is_passed_on_and_echoed() -> None:
    engine = ScriptedEngine()
    async with client_of(create_app(as_engine(engine))) as client:
        by_name = await client.post(COMPLETIONS, json={"prompt": "x", "priority": "interactive"})
        assert (by_name.headers["x-priority"], by_name.json()["priority"]) == ("1", 1)
        assert "service_tier" not in by_name.json()
        by_header = await client.post(COMPLETIONS, json={"prompt": "x"}, headers={"X-Priority": "4"})
        assert (by_header.headers["x-priority"], by_header.json()["priority"]) == ("4", 4)
        by_tier = await client.post(CHAT, json={"messages": MESSAGES, "service_tier": "flex", "stream": True})
        assert by_tier.headers["x-priority"] == "5"
        assert by_tier.text.count('"priority":5,"service_tier":"flex"') == 4
        auto = await client.post(CHAT, json={"messages": MESSAGES, "service_tier": "auto"})
        assert auto.json()["service_tier"] == "default"
    assert [handle.options["priority"] for handle in engine.handles] == [1, 4, 5, 3]


async def test_a_silent_stream_is_kept_open_by_comments() -> None:
    held = anyio.Event()
    engine = ScriptedEngine([Play(release=held)])
    app = create_app(as_engine(engine), api=ApiConfig(ping_after=0.01))
    async with exchange(app, CHAT, {"messages": MESSAGES, "stream": True}) as request:
        assert (await request.next())["status"] == 200
        for _ in range(2):
            assert await request.body() == b": waiting\n\n"
        held.set()


async def test_a_stream_begins_with_its_first_text() -> None:
    engine = ScriptedEngine([Play(release=anyio.Event())])
    async with exchange(create_app(as_engine(engine)), CHAT, {"messages": MESSAGES, "stream": True}) as request:
        await engine.submitted.wait()
        await anyio.wait_all_tasks_blocked()
        assert request.sent == 0
        release = engine.handles[0].play.release
        assert release is not None
        release.set()
        assert (await request.next())["status"] == 200
        assert b"Hello" in await request.body()


async def test_every_choice_is_queued_before_an_answer_begins_or_none_is() -> None:
    full = QueueFullError(0.2, reason="requests", limit=2)
    for streamed in (False, True):
        engine = ScriptedEngine([Play(), Play(), Play(refusal=full)])
        async with client_of(create_app(as_engine(engine))) as client:
            answer = await client.post(COMPLETIONS, json={"prompt": "x", "n": 4, "stream": streamed})
        assert answer.status_code == 429
        assert answer.headers["content-type"] == "application/json"
        assert [handle.cancelled for handle in engine.handles] == [1, 1]


async def test_more_choices_than_the_queue_holds_are_refused_for_good() -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": ["x"] * 1001})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert "at most 1000" in answer.json()["error"]["message"]


async def test_a_deadline_and_a_key_are_passed_on() -> None:
    engine = ScriptedEngine()
    await post(engine, COMPLETIONS, prompt="x", deadline=2.5, supersede="editor 1")
    await post(engine, CHAT, messages=MESSAGES)
    first, second = (handle.options for handle in engine.handles)
    assert (first["deadline"], first["supersede"]) == (2.5, "editor 1")
    assert second["deadline"] is None
    assert "supersede" not in second


@pytest.mark.parametrize("fields", [{"n": 2}, {"prompt": ["x", "y"]}])
async def test_a_key_is_for_one_choice(fields: dict[str, Any]) -> None:
    engine = ScriptedEngine()
    async with client_of(create_app(as_engine(engine))) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "x", "supersede": "editor 1", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "supersede"
    assert engine.handles == []


@pytest.mark.parametrize(("trusted", "tenant"), [(True, "ann"), (False, "")])
async def test_the_user_is_the_tenant_where_the_configuration_says_so(trusted: bool, tenant: str) -> None:
    engine = ScriptedEngine()
    async with client_of(create_app(as_engine(engine), api=ApiConfig(tenant_from_user=trusted))) as client:
        for fields in ({"user": "ann"}, {"user": None}, {}):
            await client.post(COMPLETIONS, json={"prompt": "x", **fields})
    assert [handle.options["tenant"] for handle in engine.handles] == [tenant, "", ""]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_an_answer_tells_the_priority_that_its_request_has_by_now(path: str) -> None:
    release = anyio.Event()
    engine = ScriptedEngine([Play(release=release)])
    fields: dict[str, Any] = {"prompt": "x"} if path == COMPLETIONS else {"messages": MESSAGES}
    async with anyio.create_task_group() as tasks:
        answers: list[dict[str, Any]] = []

        async def ask() -> None:
            answers.append(await post(engine, path, priority="batch", **fields))

        tasks.start_soon(ask)
        while not engine.handles:
            await anyio.lowlevel.checkpoint()
        assert engine.handles[0].level == 5
        engine.handles[0].level = Level(2)
        release.set()
    assert answers[0]["priority"] == 2


async def test_the_last_chunk_of_a_stream_tells_it_too() -> None:
    release = anyio.Event()
    engine = ScriptedEngine([Play(release=release, before_release=1)])
    chunks: list[dict[str, Any]] = []
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            async with client_of(create_app(as_engine(engine))) as client:
                answer = await client.post(COMPLETIONS, json={"prompt": "x", "priority": 5, "stream": True})
                events = answer.text.removesuffix("\n\ndata: [DONE]\n\n").split("\n\n")
                chunks.extend(json.loads(event.removeprefix("data: ")) for event in events)

        tasks.start_soon(ask)
        while not engine.handles:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        engine.handles[0].level = Level(1)
        release.set()
    assert [chunk["priority"] for chunk in chunks] == [5, 5, 1]

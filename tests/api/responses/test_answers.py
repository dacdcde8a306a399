"""What goes over the wire, to the letter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import httpx
import pytest
from openai.types.responses import Response

from llamalane.api import ApiConfig, create_app
from llamalane.api.batch import serve_item
from llamalane.api.responses.body import LOGPROBS
from llamalane.errors import DeadlineExceededError, LlamalaneError, QueueFullError, RequestCancelledError, RequestError
from llamalane.scheduler import ChatPrompt, FinishReason, OutputToken, Token
from tests.api.asgi import client_of, exchange
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.reply.recorded import CALLED, HERMES, NAMES
from tests.models import chat_templates as templates
from tests.models.chat_templates import template_of

pytestmark = pytest.mark.anyio

RESPONSES = "/v1/responses"
FULL = QueueFullError(1, reason="requests", limit=1)
TOOLS = [{"type": "function", "name": name, "strict": False} for name in sorted(NAMES)]
TWO_CALLS = next(one for one in CALLED if one.format is HERMES and len(one.reply.calls) == 2)
THOUGHT = "<think>\nIt is Norway.\n</think>\n\nIt rains."
TIMINGS = {"wait_ms": 250.0, "first_token_ms": 500.0, "total_ms": 1500.0, "parks": 0, "handovers": 1}


class SpellingEngine(ScriptedEngine):
    """An engine whose tokens are the texts of its last play."""

    def spell(self, tokens: Sequence[int]) -> list[Token]:
        texts = self.handles[-1].play.texts
        return [Token(token, texts[token], texts[token].encode()) for token in tokens]


def thinking(*plays: Play) -> SpellingEngine:
    return SpellingEngine(list(plays), chat_template=template_of(templates.THINKING))


async def ask(engine: ScriptedEngine, **body: Any) -> httpx.Response:
    async with client_of(create_app(as_engine(engine))) as client:
        return await client.post(RESPONSES, json={"input": "hi", "seed": 7, **body})


async def post(engine: ScriptedEngine, **body: Any) -> dict[str, Any]:
    """Return a response, which is as the client's types have it."""
    answer = await ask(engine, **body)
    assert answer.status_code == 200, answer.text
    fields: dict[str, Any] = answer.json()
    Response.model_validate(fields)
    return fields


async def stream(engine: ScriptedEngine, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, which are named and counted."""
    answer = await ask(engine, **body, stream=True)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events_of(answer.text)


def events_of(text: str) -> list[dict[str, Any]]:
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    events = []
    for number, block in enumerate(block for block in blocks if not block.startswith(":")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event.pop("sequence_number") == number
        events.append(event)
    return events


def types_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def texts_of(response: dict[str, Any]) -> list[tuple[str, str]]:
    """The types and texts of a response's items."""
    return [
        (item["type"], item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        for item in response["output"]
    ]


async def test_a_response() -> None:
    play = Play(cached_tokens=2)
    fields = await post(ScriptedEngine([play]), instructions="Be brief.", metadata={"a": "b"}, service_tier="flex")
    name = fields.pop("id")
    assert name.startswith("resp-")
    assert fields.pop("completed_at") >= fields.pop("created_at") > 1_700_000_000
    part = {"type": "output_text", "text": "Hello, world", "annotations": [], "logprobs": []}
    assert fields == {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "scripted",
        "output": [
            {
                "id": f"msg_{name.removeprefix('resp-')}_0",
                "type": "message",
                "role": "assistant",
                "content": [part],
                "status": "completed",
            }
        ],
        "usage": {
            "input_tokens": 3,
            "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 5,
        },
        "instructions": "Be brief.",
        "max_output_tokens": None,
        "max_tool_calls": None,
        "temperature": 0.8,
        "top_p": 0.95,
        "top_logprobs": 0,
        "text": {"format": {"type": "text"}, "verbosity": None},
        "reasoning": {"effort": None, "summary": None},
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "truncation": "disabled",
        "background": False,
        "store": False,
        "previous_response_id": None,
        "metadata": {"a": "b"},
        "user": None,
        "safety_identifier": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "service_tier": "flex",
        "priority": 5,
        "seed": 7,
        "timings": TIMINGS,
    }


async def test_what_was_asked_for_is_told_again() -> None:
    format = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    asked = {
        "max_output_tokens": 9, "max_tool_calls": 2, "temperature": 0.5, "top_p": 0.25, "user": "ann",
        "safety_identifier": "b", "prompt_cache_key": "c", "prompt_cache_retention": "24h", "tool_choice": "required",
        "parallel_tool_calls": False, "text": {"format": format, "verbosity": "medium"},
    }  # fmt: skip
    engine = ScriptedEngine(chat_template=template_of(templates.HERMES))
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    fields = await post(engine, **asked, store=True, model="other", tools=[tool])
    assert {name: fields[name] for name in asked} == asked
    assert fields["tools"] == [{**tool, "description": None, "strict": True}]
    assert (fields["store"], fields["model"]) == (False, "scripted")


async def test_a_response_that_is_cut_off_is_incomplete() -> None:
    fields = await post(ScriptedEngine([Play(finish=FinishReason.LENGTH)]))
    assert (fields["status"], fields["completed_at"]) == ("incomplete", None)
    assert fields["incomplete_details"] == {"reason": "max_output_tokens"}
    assert fields["output"][0]["status"] == "incomplete"
    events = await stream(ScriptedEngine([Play(finish=FinishReason.LENGTH)]))
    assert types_of(events)[-2:] == ["output_item.done", "incomplete"]
    assert events[-2]["item"]["status"] == "incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_stream_of_events() -> None:
    created, begun, added, part, *deltas, done, part_done, item_done, completed = await stream(ScriptedEngine())
    assert (created["type"], begun["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == begun["response"]
    beginning, response = created["response"], completed["response"]
    assert (beginning["status"], beginning["output"], beginning["usage"]) == ("in_progress", [], None)
    Response.model_validate(beginning)
    item = response["output"][0]
    place = {"output_index": 0, "item_id": item["id"], "content_index": 0}
    text = {"type": "output_text", "text": "Hello, world", "annotations": [], "logprobs": []}
    assert added == {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {**item, "content": [], "status": "in_progress"},
    }
    assert part == {"type": "response.content_part.added", **place, "part": {**text, "text": ""}}
    assert deltas == [
        {"type": "response.output_text.delta", **place, "delta": delta, "logprobs": []}
        for delta in ("Hello", ", world")
    ]
    assert done == {"type": "response.output_text.done", **place, "text": "Hello, world", "logprobs": []}
    assert part_done == {"type": "response.content_part.done", **place, "part": text}
    assert item_done == {"type": "response.output_item.done", "output_index": 0, "item": item}
    assert completed["type"] == "response.completed"
    whole = await post(ScriptedEngine())
    for fields in (response, whole):
        for name in ("id", "created_at", "completed_at"):
            fields.pop(name)
        fields["output"][0].pop("id")
    assert response == whole


async def test_each_piece_of_text_is_one_message_to_the_server() -> None:
    engine = ScriptedEngine()
    async with exchange(create_app(as_engine(engine)), RESPONSES, {"input": "hi", "stream": True}) as request:
        assert (await request.next())["status"] == 200
        first, second, last = [await request.body() for _ in range(3)]
    assert types_of(events_of(first.decode()))[-1] == "output_text.delta"
    assert second.count(b"event: ") == 1
    assert last.endswith(b"}\n\n")


@pytest.mark.parametrize("text", ['quotes " and \\', "line\nbreak\r\n\n", "grüße 🦙", "\x00\u2028", "data: [DONE]\n\n"])
async def test_any_text_survives(text: str) -> None:
    events = await stream(ScriptedEngine([Play([text])]))
    [delta] = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert delta == text
    for response in (events[-1]["response"], await post(ScriptedEngine([Play([text])]))):
        assert texts_of(response) == [("message", text)]


async def test_an_output_without_anything_is_an_empty_message() -> None:
    events = await stream(ScriptedEngine([Play([])]))
    assert types_of(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    for response in (events[-1]["response"], await post(ScriptedEngine([Play([])]))):
        assert texts_of(response) == [("message", "")]


async def test_thoughts_are_items_and_their_tokens_are_counted() -> None:
    pieces = ["<think>", "\nIt is", " Norway.", "\n</think>", "\n\n", "It", " rains."]
    assert "".join(pieces) == THOUGHT
    events = await stream(thinking(Play(pieces)))
    assert types_of(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    for response in (events[-1]["response"], await post(thinking(Play(pieces)))):
        assert texts_of(response) == [("reasoning", "It is Norway."), ("message", "It rains.")]
        assert response["output"][0]["summary"] == []
        assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 5}
    without = await post(thinking(Play(pieces)), include_reasoning=False)
    assert texts_of(without) == [("message", "It rains.")]
    assert without["usage"]["output_tokens_details"] == {"reasoning_tokens": 5}


async def test_thoughts_that_are_cut_off_are_all_there_is() -> None:
    for response in (
        await post(thinking(Play(["<think>", "And so"], FinishReason.LENGTH))),
        (await stream(thinking(Play(["<think>", "And so"], FinishReason.LENGTH))))[-1]["response"],
    ):
        assert texts_of(response) == [("reasoning", "And so")]
        assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")
        assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


async def test_calls_are_items_after_the_message() -> None:
    plays = [Play([TWO_CALLS.text[at : at + 3] for at in range(0, len(TWO_CALLS.text), 3)]), Play([TWO_CALLS.text])]
    engine = ScriptedEngine(plays, chat_template=template_of(templates.HERMES))
    events = await stream(engine, tools=TOOLS)
    arguments = [call.arguments for call in TWO_CALLS.reply.calls]
    for response in (events[-1]["response"], await post(engine, tools=TOOLS)):
        assert texts_of(response) == [
            ("message", TWO_CALLS.reply.content),
            *(("function_call", text) for text in arguments),
        ]
        calls = response["output"][1:]
        assert [call["name"] for call in calls] == [call.name for call in TWO_CALLS.reply.calls]
        assert len({call["call_id"] for call in calls} | {call["id"] for call in calls}) == 4
    last = [event for event in events if event.get("output_index") == 2]
    assert types_of(last)[0] == "output_item.added"
    assert set(types_of(last)[1:-2]) == {"function_call_arguments.delta"}
    assert types_of(last)[-2:] == ["function_call_arguments.done", "output_item.done"]
    assert last[0]["item"] == {**last[-1]["item"], "arguments": "", "status": "in_progress"}
    assert "".join(event["delta"] for event in last[1:-2]) == last[-2]["arguments"] == arguments[1]


def scored(text: str) -> Play:
    tokens = [OutputToken(number, sign, sign.encode(), -0.5, (), number) for number, sign in enumerate(text)]
    return Play(list(text), tokens=[[token] for token in tokens])


def told(logprobs: list[dict[str, Any]]) -> str:
    return "".join(entry["token"] for entry in logprobs)


@pytest.mark.parametrize(
    ("text", "template", "messages"),
    [
        ("Grüße", templates.HERMES, ["Grüße"]),
        (TWO_CALLS.text, templates.HERMES, ["I'll look that up for both cities."]),
        (THOUGHT, templates.THINKING, ["It rains."]),
        ("a <b> c", templates.HERMES, ["a <b> c"]),
    ],
)
async def test_log_probabilities_are_those_of_the_text(text: str, template: str, messages: list[str]) -> None:
    engine = ScriptedEngine([scored(text), scored(text)], chat_template=template_of(template))
    events = await stream(engine, tools=TOOLS, include=[LOGPROBS])
    whole = await post(engine, tools=TOOLS, include=[LOGPROBS])
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    done = [event["logprobs"] for event in events if event["type"] == "response.output_text.done"]
    assert [told(logprobs) for logprobs in done] == messages
    assert "".join(told(event["logprobs"]) for event in deltas) == "".join(messages)
    for response in (whole, events[-1]["response"]):
        parts = [item["content"][0] for item in response["output"] if item["type"] == "message"]
        assert [told(part["logprobs"]) for part in parts] == messages
    entry = done[0][0]
    assert entry == {"token": messages[0][0], "logprob": -0.5, "bytes": [ord(messages[0][0])], "top_logprobs": []}


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_fails_before_the_first_event_has_its_own_status(streamed: bool) -> None:
    answer = await ask(ScriptedEngine([Play(refusal=FULL)]), stream=streamed)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "queue_full"
    late = DeadlineExceededError(2.0)
    answer = await ask(ScriptedEngine([Play([], error=late)]), stream=streamed)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (FULL, "rate_limit_exceeded", "rate_limit_error"),
        (DeadlineExceededError(2.0), "server_error", "timeout_error"),
        (RequestCancelledError("gone"), "server_error", "conflict_error"),
        (RequestError("wrong"), "invalid_prompt", "invalid_request_error"),
    ],
)
async def test_what_fails_later_is_an_event(error: LlamalaneError, code: str, kind: str) -> None:
    events = await stream(ScriptedEngine([Play(["one"], error=error)]))
    assert types_of(events)[-2:] == ["output_text.delta", "failed"]
    response = events[-1]["response"]
    Response.model_validate(response)
    assert response["status"] == "failed"
    assert response["error"] == {"code": code, "message": str(error), "type": kind, "param": None}
    assert texts_of(response) == [("message", "one")]
    assert response["output"][0]["status"] == "incomplete"


async def test_a_failure_after_a_comment_comes_with_the_events_before_it() -> None:
    held = anyio.Event()
    engine = ScriptedEngine([Play([], release=held, error=FULL)])
    app = create_app(as_engine(engine), api=ApiConfig(ping_after=0.01))
    async with exchange(app, RESPONSES, {"input": "hi", "stream": True}) as request:
        assert (await request.next())["status"] == 200
        assert await request.body() == b": waiting\n\n"
        held.set()
        body = b""
        while not body.endswith(b"}\n\n"):
            body = await request.body()
    assert types_of(events_of(body.decode())) == ["created", "in_progress", "failed"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_cancels_its_response(streamed: bool) -> None:
    engine = ScriptedEngine([Play(["a", "b"], release=anyio.Event(), before_release=1)])
    async with exchange(create_app(as_engine(engine)), RESPONSES, {"input": "hi", "stream": streamed}) as request:
        await engine.submitted.wait()
        if streamed:
            await request.next()
            await request.body()
        request.leave()
    assert [handle.cancelled for handle in engine.handles] == [1]


async def test_priority_deadline_and_key_are_passed_on() -> None:
    engine = ScriptedEngine()
    answer = await ask(engine, priority="interactive", deadline=2.5, supersede="editor 1")
    assert (answer.headers["x-priority"], answer.json()["priority"]) == ("1", 1)
    [options] = [handle.options for handle in engine.handles]
    assert (options["priority"], options["deadline"], options["supersede"]) == (1, 2.5, "editor 1")


async def test_items_come_to_the_model_by_its_template() -> None:
    engine = ScriptedEngine(chat_template=template_of(templates.HERMES))
    call = {"type": "function_call", "call_id": "call_1", "name": "get_time", "arguments": '{"zone": "UTC"}'}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "Noon."}
    await post(engine, instructions="Be brief.", input=[{"role": "user", "content": "When?"}, call, result])
    [prompt] = [handle.prompt for handle in engine.handles]
    assert isinstance(prompt, ChatPrompt)
    places = [prompt.text.index(text) for text in ("Be brief.", "When?", "get_time", "UTC", "Noon.")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("DELETE", ""), ("GET", "?stream=true"), ("POST", "/cancel"), ("GET", "/input_items")],
)
async def test_no_response_is_found(method: str, path: str) -> None:
    async with client_of(create_app(as_engine(ScriptedEngine()))) as client:
        answer = await client.request(method, f"{RESPONSES}/resp-1{path}")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("response_not_found", "invalid_request_error")
    assert "'resp-1': this server stores none" in error["message"]


async def test_a_response_can_be_an_item_of_a_batch() -> None:
    engine = as_engine(ScriptedEngine())
    status, body = await serve_item(engine, "POST", RESPONSES, {"input": "hi"})
    assert (status, texts_of(body)) == (200, [("message", "Hello, world")])
    status, body = await serve_item(engine, "POST", RESPONSES, {"input": "hi", "stream": True})
    assert (status, body["error"]["param"]) == (400, "stream")


async def test_an_effort_that_the_template_does_not_know_is_refused() -> None:
    answer = await ask(ScriptedEngine(), reasoning={"effort": "high"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "reasoning.effort"
    engine = thinking()
    assert (await post(engine, reasoning={"effort": "none"}))["reasoning"]["effort"] == "none"
    [prompt] = [handle.prompt for handle in engine.handles]
    assert isinstance(prompt, ChatPrompt)
    assert prompt.text.endswith("</think>\n\n")

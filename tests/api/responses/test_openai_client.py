"""Responses through the real OpenAI client, over a real socket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import openai
import pytest
from openai.types.responses import ParsedResponse, ParsedResponseFunctionToolCall, Response
from pydantic import BaseModel, Field

from llamalane.api import ApiConfig, create_app
from llamalane.errors import QueueFullError
from llamalane.scheduler import EventKind
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.responses.test_answers import THOUGHT, TWO_CALLS
from tests.api.serving import SERVERS, served, serving
from tests.api.test_servers import observing
from tests.api.test_tools import FUNCTIONS, MODELS
from tests.models import chat_templates as templates
from tests.models.chat_templates import template_of

QUESTION = "Describe a person: the name, the age, and a colour that suits."
TOOLS: list[Any] = [{"type": "function", **function["function"]} for function in FUNCTIONS]
OPEN_TOOLS: list[Any] = [
    {"type": "function", "name": call.name, "parameters": {"type": "object"}, "strict": False}
    for call in TWO_CALLS.reply.calls
]


class Person(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    age: Annotated[int, Field(ge=0, le=120)]
    colour: Literal["red", "green", "blue"]


@pytest.fixture(scope="module")
def client(tiny_model: Path) -> Iterator[openai.OpenAI]:
    with serving(tiny_model) as client:
        yield client


@contextlib.contextmanager
def scripted(*plays: Play, template: str = templates.PLAIN) -> Iterator[tuple[openai.OpenAI, ScriptedEngine]]:
    engine = ScriptedEngine(list(plays), chat_template=template_of(template))
    with (
        served(create_app(as_engine(engine))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client, engine


def check(response: Response) -> None:
    """Check that a response is as the client's types have it, which the client itself does not look at."""
    Response.model_validate(response.to_dict())


def test_a_seed_repeats_a_response_streamed_or_not(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "model", "instructions": "You are brief.", "input": "Say hi", "max_output_tokens": 12,
        "extra_body": {"seed": 5, "ignore_eos": True},
    }  # fmt: skip
    whole = client.responses.create(**options)
    check(whole)
    assert whole.status == "incomplete"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 12
    assert whole.usage.total_tokens == whole.usage.input_tokens + 12
    events = list(client.responses.create(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.incomplete"
    check(last.response)
    assert text == last.response.output_text == whole.output_text != ""


def test_the_whole_conversation_is_sent_each_time(client: openai.OpenAI) -> None:
    history: list[Any] = [{"role": "user", "content": "Name a river."}]
    first = client.responses.create(model="model", input=history, max_output_tokens=5)
    history += first.output
    history.append({"role": "user", "content": [{"type": "input_text", "text": "And another."}]})
    second = client.responses.create(model="model", input=history, max_output_tokens=5)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


def test_random_numbers_parse_as_what_was_asked_for(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "model", "input": QUESTION, "text_format": Person, "temperature": 1.5, "extra_body": {"seed": 2}
    }  # fmt: skip
    parsed = client.responses.parse(**options)
    assert isinstance(parsed.output_parsed, Person)
    assert parsed.status == "completed"
    with client.responses.stream(**options) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed


def call_in(response: ParsedResponse[Any]) -> ParsedResponseFunctionToolCall:
    [call] = response.output
    assert isinstance(call, ParsedResponseFunctionToolCall)
    return call


def test_random_numbers_call_what_they_are_told_to(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "model", "input": "How is the weather in Oslo?", "tools": TOOLS, "tool_choice": "required",
        "parallel_tool_calls": False, "temperature": 1.5, "extra_body": {"seed": 3},
    }  # fmt: skip
    whole = client.responses.parse(**options)
    check(whole)
    call = call_in(whole)
    MODELS[call.name].model_validate_json(call.arguments)
    with client.responses.stream(**options) as stream:
        streamed = call_in(stream.get_final_response())
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
    named = client.responses.parse(**{**options, "tool_choice": {"type": "function", "name": "AddNumbers"}})
    assert call_in(named).name == "AddNumbers"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"weather": "rain"})}
    answered = client.responses.create(
        model="model", input=[{"role": "user", "content": "How is the weather in Oslo?"}, *whole.output, result],  # type: ignore[list-item]  # the client turns them into dicts
        tools=TOOLS, max_output_tokens=5,
    )  # fmt: skip
    assert answered.usage is not None
    assert whole.usage is not None
    assert answered.usage.input_tokens > whole.usage.input_tokens


def test_tokens_are_counted_beforehand(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "model", "input": "Say hi", "instructions": "You are brief."}
    counted = client.responses.input_tokens.count(**options)
    assert counted.object == "response.input_tokens"
    used = client.responses.create(**options, max_output_tokens=1).usage
    assert used is not None
    assert counted.input_tokens == used.input_tokens
    assert client.responses.input_tokens.count(**options, tools=TOOLS).input_tokens > counted.input_tokens
    with pytest.raises(openai.NotFoundError):
        client.responses.input_tokens.count(**{**options, "model": "gpt-9"})
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_tokens.count(**options, previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"


def test_log_probabilities_come_with_the_text(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "model", "input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2,
        "max_output_tokens": 6, "extra_body": {"seed": 1},
    }  # fmt: skip
    whole = client.responses.create(**options)
    check(whole)
    [message] = whole.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs
    assert all(len(entry.top_logprobs) == 2 and entry.logprob < 0 for entry in part.logprobs)
    deltas = [event for event in client.responses.create(**options, stream=True)
              if event.type == "response.output_text.delta"]  # fmt: skip
    streamed = [entry.token for event in deltas for entry in event.logprobs]
    assert streamed == [entry.token for entry in part.logprobs]


def test_priority_and_tier(client: openai.OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        model="model", input="hi", max_output_tokens=1, service_tier="priority", metadata={"a": "b"}
    )
    assert raw.headers["x-priority"] == "1"
    response = raw.parse()
    assert (response.service_tier, response.metadata) == ("priority", {"a": "b"})
    assert response.to_dict()["priority"] == 1


def test_bad_requests_harm_nobody_else(client: openai.OpenAI) -> None:
    unsupported = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": unsupported}}}
    for fields, param, code in (
        ({}, "input", None),
        ({"input": "x" * 1_000_000}, "input", "context_length_exceeded"),
        ({"input": "x", "max_output_tokens": 10**12}, "max_output_tokens", None),
        ({"input": "x", "temperature": "hot"}, "temperature", None),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id", None),
        ({"input": "x", "priority": "sometime"}, "priority", "invalid_priority"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0]", None),
        ({"input": "x", "tools": [tool]}, "tools[0].parameters", None),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": unsupported}}},
         "text.format", None),
    ):  # fmt: skip
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.post("/responses", body={**fields, "stream": stream}, cast_to=object)
            assert (caught.value.param, caught.value.code) == (param, code)
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="gpt-9", input="x")
    assert missing.value.code == "model_not_found"
    assert client.responses.create(model="model", input="x", max_output_tokens=1).output


def test_what_is_not_stored_is_not_found(client: openai.OpenAI) -> None:
    response = client.responses.create(model="model", input="x", max_output_tokens=1)
    for find in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="stores none"):
            find(response.id)
    with pytest.raises(openai.NotFoundError, match="stores none"):
        client.responses.input_items.list(response.id)


def test_calls_and_thoughts_are_put_together_by_the_client() -> None:
    text = "<think>\nTwo cities.\n</think>\n\n" + TWO_CALLS.text
    play = Play([text[at : at + 3] for at in range(0, len(text), 3)])
    with (
        scripted(play, template=templates.THINKING) as (client, _),
        client.responses.stream(model="scripted", input="hi", tools=OPEN_TOOLS) as stream,
    ):
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    check(response)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output_text == TWO_CALLS.reply.content
    calls = [item for item in response.output if item.type == "function_call"]
    assert [call.arguments for call in calls] == [call.arguments for call in TWO_CALLS.reply.calls]
    assert kinds.count("response.output_item.done") == 4


def test_thoughts_and_calls_are_taken_back() -> None:
    plays = [Play([THOUGHT + TWO_CALLS.text.replace("I'll look that up for both cities.", "")]), Play()]
    with scripted(*plays, template=templates.THINKING) as (client, engine):
        first = client.responses.create(model="scripted", input="hi", tools=OPEN_TOOLS)
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": f"Answer {number}"}
            for number, item in enumerate(first.output)
            if item.type == "function_call"
        ]
        history: list[Any] = [{"role": "user", "content": "hi"}, *first.output, *results]
        client.responses.create(model="scripted", input=history, tools=OPEN_TOOLS)
    prompt = str(engine.handles[-1].prompt)
    places = [prompt.index(text) for text in ("It rains.", "Oslo", "Asia/Tokyo", "Answer 2", "Answer 3")]
    assert places == sorted(places)
    assert prompt.count("<|im_start|>assistant") == 2, "one turn, and the one that is to come"


def test_a_failure_in_a_stream_reaches_the_client() -> None:
    with scripted(Play(["one"], error=QueueFullError(1, reason="requests", limit=1))) as (client, _):
        *_, delta, last = client.responses.create(model="scripted", input="x", stream=True)
    assert delta.type == "response.output_text.delta"
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "rate_limit_exceeded"


@pytest.mark.parametrize("server", SERVERS)
def test_closing_a_stream_gives_its_place_back(tiny_model: Path, server: str) -> None:
    with (
        observing(tiny_model, server, ApiConfig()) as observed,
        openai.OpenAI(base_url=f"{observed.url}/v1", api_key="none") as client,
    ):
        options: dict[str, Any] = {"model": "tiny", "input": "x", "extra_body": {"ignore_eos": True}}
        stream = client.responses.create(**options, stream=True)
        started = observed.wait_for(EventKind.STARTED)
        assert next(stream).type == "response.created"
        stream.close()
        assert observed.wait_for(EventKind.ENDED) == started
        # The place is free: the next response gets it, and ends.
        response = client.responses.create(**options, max_output_tokens=2)
        assert response.usage is not None
        assert response.usage.output_tokens == 2
        assert observed.metric("llamalane_requests_ended_total", outcome="cancelled") == 1


@pytest.mark.smollm2
def test_smollm2_answers_parses_and_calls(smollm2: Path) -> None:
    with serving(smollm2) as client:
        answer = client.responses.create(model="model", input="Say hello.", temperature=0, max_output_tokens=16)
        assert answer.output_text
        parsed = client.responses.parse(
            model="model", input=QUESTION, text_format=Person, temperature=0, max_output_tokens=200
        )
        assert isinstance(parsed.output_parsed, Person)
        called = client.responses.parse(
            model="model", input="How is the weather in Oslo?", tools=TOOLS, tool_choice="required",
            parallel_tool_calls=False, temperature=0, max_output_tokens=120,
        )  # fmt: skip
        call = call_in(called)
        MODELS[call.name].model_validate_json(call.arguments)

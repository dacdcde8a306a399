"""Tools and thoughts, through the real OpenAI client, over a real socket."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam, ChatCompletionToolUnionParam
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_chunk import Choice as StreamedChoice
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob
from pydantic import BaseModel, ConfigDict, Field

from llamalane.api import create_app
from llamalane.api.reply import Reply, ToolFormat
from llamalane.scheduler import (
    ChatPrompt,
    FinishReason,
    OutputToken,
)
from tests.api.fake_engine import Play, ScriptedEngine, as_engine, sampling_of
from tests.api.reply.recorded import CALLED, HERMES, NAMES
from tests.api.reply.test_plan import NATIVE
from tests.api.serving import served, serving
from tests.models import chat_templates as templates
from tests.models.chat_templates import template_of

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How is the weather in Oslo?"}]
TOOLS: list[ChatCompletionToolUnionParam] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in sorted(NAMES)
]
TWO_CALLS = next(one for one in CALLED if one.format is HERMES and len(one.reply.calls) == 2)
THOUGHT = "<think>\nIt is Norway.\n</think>\n\nIt rains."


class GetWeather(BaseModel):
    """Get the weather in a city."""

    model_config = ConfigDict(extra="forbid", strict=True)

    city: Annotated[str, Field(max_length=12)]
    unit: Literal["celsius", "fahrenheit"]
    days: Annotated[int, Field(ge=1, le=7)] | None


class AddNumbers(BaseModel):
    """Add two numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)

    a: Annotated[int, Field(ge=-99, le=99)]
    b: Annotated[int, Field(ge=-99, le=99)]


FUNCTIONS = [openai.pydantic_function_tool(GetWeather), openai.pydantic_function_tool(AddNumbers)]
MODELS: dict[str, type[BaseModel]] = {"GetWeather": GetWeather, "AddNumbers": AddNumbers}


@contextlib.contextmanager
def client_of(engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with (
        served(create_app(as_engine(engine))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def engine_for(source: str, *plays: Play) -> ScriptedEngine:
    return ScriptedEngine(list(plays), chat_template=template_of(source))


def pieces(text: str, size: int = 3) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def deltas_of(chunks: Sequence[ChatCompletionChunk]) -> list[dict[str, Any]]:
    """The deltas of a stream with one choice, after the one that names the role and before the one that ends it."""
    first, *between, last = [chunk.choices[0].delta.to_dict() for chunk in chunks]
    assert first == {"role": "assistant", "content": ""}
    assert last == {}
    return between


@pytest.mark.parametrize("format", ToolFormat)
def test_calls_are_told_streamed_or_not(format: ToolFormat) -> None:
    recordings = [one for one in CALLED if one.format is format and not one.reply.reasoning]
    plays = [play for one in recordings for play in (Play(pieces(one.text)), Play([one.text]))]
    with client_of(engine_for(NATIVE[format], *plays)) as client:
        for recorded in recordings:
            with client.chat.completions.stream(model="scripted", messages=MESSAGES, tools=TOOLS) as stream:
                check(stream.get_final_completion().choices[0], recorded.reply)
            whole = client.chat.completions.create(model="scripted", messages=MESSAGES, tools=TOOLS).choices[0]
            check(whole, recorded.reply)
            assert whole.message.content == (recorded.reply.content or None)


def check(choice: Choice, reply: Reply) -> None:
    """Check that a choice is a reply with calls."""
    called = [call.to_dict() for call in choice.message.tool_calls or []]
    assert {call["type"] for call in called} == {"function"}
    functions: list[Any] = [call["function"] for call in called]
    assert [(function["name"], function["arguments"]) for function in functions] == [
        (call.name, call.arguments) for call in reply.calls
    ]
    assert (choice.message.content or "") == reply.content
    assert choice.finish_reason == "tool_calls"


def test_deltas_of_calls_keep_to_openai_s_rules() -> None:
    play = Play(pieces(TWO_CALLS.text))
    with client_of(engine_for(templates.HERMES, play)) as client:
        chunks = list(client.chat.completions.create(model="scripted", messages=MESSAGES, tools=TOOLS, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [*[None] * (len(chunks) - 1), "tool_calls"]
    deltas = deltas_of(chunks)
    contents = list(itertools.takewhile(lambda delta: "content" in delta, deltas))
    assert "".join(delta["content"] for delta in contents) == TWO_CALLS.reply.content
    calls = [delta["tool_calls"] for delta in deltas[len(contents) :]]
    assert all(len(call) == 1 for call in calls)
    indexes = [call["index"] for [call] in calls]
    assert indexes == sorted(indexes)
    for index, expected in enumerate(TWO_CALLS.reply.calls):
        first, *others = [call for [call] in calls if call["index"] == index]
        assert first.pop("id").startswith("call_")
        assert first == {"index": index, "type": "function", "function": {"name": expected.name, "arguments": ""}}
        assert len(others) > 3
        assert all(call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"} for call in others)
        assert "".join(call["function"]["arguments"] for call in others) == expected.arguments


def test_choices_have_calls_of_their_own() -> None:
    plays = [Play([TWO_CALLS.text]), Play(["It rains."]), Play(["<tool_call>{"], finish=FinishReason.LENGTH)]
    with client_of(engine_for(templates.HERMES, *plays)) as client:
        choices = client.chat.completions.create(model="scripted", messages=MESSAGES, tools=TOOLS, n=3).choices
    assert [choice.finish_reason for choice in choices] == ["tool_calls", "stop", "length"]
    assert [len(choice.message.tool_calls or []) for choice in choices] == [2, 0, 0]
    assert [choice.message.content for choice in choices[1:]] == ["It rains.", "<tool_call>{"]


def test_without_parallel_calls_the_first_is_the_last() -> None:
    plays = [Play(pieces(TWO_CALLS.text)), Play([TWO_CALLS.text])]
    engine = engine_for(templates.HERMES, *plays)
    with client_of(engine) as client:
        for stream in (True, False):
            answer = client.chat.completions.create(
                model="scripted", messages=MESSAGES, tools=TOOLS, parallel_tool_calls=False, stream=stream
            )
            if isinstance(answer, openai.Stream):
                calls = [delta["tool_calls"][0] for delta in deltas_of(list(answer)) if "tool_calls" in delta]
                assert {call["index"] for call in calls} == {0}
            else:
                [call] = answer.choices[0].message.tool_calls or []
                assert call.type == "function"
                assert call.function.name == TWO_CALLS.reply.calls[0].name
    for handle in engine.handles:
        stop_when = handle.options["stop_when"]
        assert stop_when is not None
        assert stop_when()(TWO_CALLS.text)


def test_thoughts_are_told_apart_streamed_or_not() -> None:
    plays = [Play(pieces(THOUGHT)), Play([THOUGHT]), Play([THOUGHT]), Play(["<think>And so"], FinishReason.LENGTH)]
    with client_of(engine_for(templates.THINKING, *plays)) as client:
        chunks = list(client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True))
        whole = client.chat.completions.create(model="scripted", messages=MESSAGES).choices[0].message
        without = (
            client.chat.completions.create(model="scripted", messages=MESSAGES, extra_body={"include_reasoning": False})
            .choices[0]
            .message
        )
        cut = client.chat.completions.create(model="scripted", messages=MESSAGES).choices[0]
    deltas = deltas_of(chunks)
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "It is Norway."
    assert "".join(delta.get("content", "") for delta in deltas) == "It rains."
    assert whole.to_dict() == {
        "role": "assistant",
        "content": "It rains.",
        "refusal": None,
        "reasoning_content": "It is Norway.",
    }
    assert without.to_dict() == {"role": "assistant", "content": "It rains.", "refusal": None}
    assert (cut.message.content, cut.message.to_dict()["reasoning_content"]) == (None, "And so")
    assert cut.finish_reason == "length"


def test_plain_answers_are_asked_for_as_ever() -> None:
    engine = engine_for(templates.HERMES, Play([TWO_CALLS.text]), Play([TWO_CALLS.text]))
    with client_of(engine) as client:
        answers = [
            client.chat.completions.create(model="scripted", messages=MESSAGES),
            client.chat.completions.create(model="scripted", messages=MESSAGES, tools=TOOLS, tool_choice="none"),
        ]
    for answer in answers:
        assert answer.choices[0].message.to_dict() == {
            "role": "assistant",
            "content": TWO_CALLS.text,
            "refusal": None,
        }
        assert answer.choices[0].finish_reason == "stop"
    for handle in engine.handles:
        assert isinstance(handle.prompt, ChatPrompt)
        assert "<tools>" not in handle.prompt.text
        assert handle.options.keys() == {"sampling", "priority", "tenant", "deadline", "choice", "request_id"}


def test_a_conversation_with_calls_is_taken_back() -> None:
    engine = engine_for(templates.HERMES, Play([TWO_CALLS.text]))
    with client_of(engine) as client:
        message = client.chat.completions.create(model="scripted", messages=MESSAGES, tools=TOOLS).choices[0].message
        answers: list[ChatCompletionMessageParam] = [
            {"role": "tool", "tool_call_id": call.id, "content": f"Answer {number}"}
            for number, call in enumerate(message.tool_calls or [])
        ]
        history = [*MESSAGES, message.to_dict(), *answers]
        client.chat.completions.create(model="scripted", messages=history, tools=TOOLS)  # type: ignore[arg-type]
    prompt = engine.handles[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    places = [prompt.text.index(text) for text in ("I'll look", '"Oslo"', '"Asia/Tokyo"', "Answer 0", "Answer 1")]
    assert places == sorted(places)


def test_log_probabilities_are_those_of_all_tokens() -> None:
    text = TWO_CALLS.text
    tokens = [OutputToken(number, letter, letter.encode(), -0.5, (), number) for number, letter in enumerate(text)]
    play = Play(list(text), tokens=[[token] for token in tokens])
    with client_of(engine_for(templates.HERMES, play)) as client:
        chunks = list(
            client.chat.completions.create(model="scripted", messages=MESSAGES, tools=TOOLS, stream=True, logprobs=True)
        )
    told = [entry.token for chunk in chunks for choice in chunk.choices for entry in logprobs_of(choice)]
    assert "".join(told) == text
    assert deltas_of(chunks)[-1] == {}, "nothing is left to be told but log probabilities"
    calls = [delta["tool_calls"][0] for delta in deltas_of(chunks) if "tool_calls" in delta]
    arguments = ["".join(call["function"]["arguments"] for call in calls if call["index"] == index) for index in (0, 1)]
    assert arguments == [call.arguments for call in TWO_CALLS.reply.calls]


def logprobs_of(choice: StreamedChoice) -> list[ChatCompletionTokenLogprob]:
    return (choice.logprobs.content or []) if choice.logprobs is not None else []


def test_variables_and_effort_reach_the_template() -> None:
    engine = engine_for(templates.THINKING)
    with client_of(engine) as client:
        for fields in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
            client.chat.completions.create(model="scripted", messages=MESSAGES, extra_body=fields)
    for handle in engine.handles:
        assert isinstance(handle.prompt, ChatPrompt)
        assert handle.prompt.text.endswith("</think>\n\n")


def test_a_form_is_kept_to_after_the_thoughts() -> None:
    engine = engine_for(templates.THINKING)
    with client_of(engine) as client:
        client.chat.completions.create(model="scripted", messages=MESSAGES, response_format={"type": "json_object"})
    grammar = sampling_of(engine.handles[0]).grammar
    assert grammar is not None
    assert "to_close_thoughts" in grammar.text


@pytest.fixture(scope="module")
def client(tiny_model: Path) -> Iterator[openai.OpenAI]:
    with serving(tiny_model) as client:
        yield client


def test_random_numbers_call_what_they_are_told_to(client: openai.OpenAI) -> None:
    required = client.chat.completions.parse(
        model="model", messages=MESSAGES, tools=FUNCTIONS, tool_choice="required", parallel_tool_calls=False,
        n=3, seed=1, temperature=1.5,
    )  # fmt: skip
    named = client.chat.completions.parse(
        model="model", messages=MESSAGES, tools=FUNCTIONS, seed=2, temperature=1.5,
        tool_choice={"type": "function", "function": {"name": "AddNumbers"}},
    )  # fmt: skip
    for choice in (*required.choices, *named.choices):
        [call] = choice.message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, MODELS[call.function.name])
        assert choice.message.content is None
        assert choice.finish_reason == "tool_calls"
    assert (named.choices[0].message.tool_calls or [])[0].function.name == "AddNumbers"


def test_a_streamed_call_is_the_same_call(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "model",
        "messages": MESSAGES,
        "tools": FUNCTIONS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "seed": 3,
        "temperature": 1.5,
    }
    with client.chat.completions.stream(**options) as stream:
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls or []
    [whole] = client.chat.completions.parse(**options).choices[0].message.tool_calls or []
    assert streamed.function.name == whole.function.name
    assert streamed.function.parsed_arguments == whole.function.parsed_arguments is not None


def test_a_call_that_is_cut_off_tells_so(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="model", messages=MESSAGES, tools=FUNCTIONS, tool_choice="required", max_tokens=60, seed=1
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls


@pytest.mark.parametrize("strict", [True, False])
def test_a_schema_that_cannot_be_kept_to_is_named(client: openai.OpenAI, strict: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools: list[Any] = [
        FUNCTIONS[0],
        {"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}},
    ]
    for choice, refused in (("required", True), ("auto", strict), ("none", False)):
        options: dict[str, Any] = {"model": "model", "messages": MESSAGES, "tools": tools, "tool_choice": choice}
        if not refused:
            client.chat.completions.create(**options, max_tokens=1)
            continue
        with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
            client.chat.completions.create(**options)
        assert caught.value.param == "tools[1].function.parameters"


@pytest.mark.smollm2
def test_smollm2_calls_functions(smollm2: Path) -> None:
    messages = list(MESSAGES)
    with serving(smollm2) as client:
        answer = client.chat.completions.parse(
            model="model", messages=messages, tools=FUNCTIONS, tool_choice="required", parallel_tool_calls=False,
            temperature=0, max_tokens=120,
        )  # fmt: skip
        [call] = answer.choices[0].message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, MODELS[call.function.name])
        named = client.chat.completions.parse(
            model="model", messages=messages, tools=FUNCTIONS, max_tokens=120, seed=1, n=2,
            tool_choice={"type": "function", "function": {"name": "GetWeather"}},
        )  # fmt: skip
        for choice in named.choices:
            [called] = choice.message.tool_calls or []
            GetWeather.model_validate_json(called.function.arguments)
        free = client.chat.completions.create(
            model="model", messages=messages, tools=FUNCTIONS, temperature=0, max_tokens=40
        )
        assert free.choices[0].message.content or free.choices[0].message.tool_calls
        answered = client.chat.completions.create(
            model="model", tools=FUNCTIONS, temperature=0, max_tokens=40,
            messages=[
                *messages,
                answer.choices[0].message,  # type: ignore[list-item]  # the client turns it into a dict
                {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"weather": "rain"})},
            ],
        )  # fmt: skip
    assert answered.usage is not None
    assert free.usage is not None
    assert answered.usage.prompt_tokens > free.usage.prompt_tokens

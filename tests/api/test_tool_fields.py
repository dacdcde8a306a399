"""What a body may say of tools and thoughts, and how what it may not is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llamalane.api.bodies import parse_body
from llamalane.api.chat import ChatBody
from llamalane.api.reply import Call, Question, ToolMode, Turn
from llamalane.api.schemas import CompletionBody
from llamalane.api.tool_fields import MAX_TOOLS
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import Grammar, GrammarPart

USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
ANSWER = {"role": "tool", "tool_call_id": "call_1", "content": "2"}
TOOL = {"type": "function", "function": {"name": "f"}}


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


def named(name: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def question(**fields: Any) -> Question:
    body = {"messages": [USER], **fields}
    return parse_body(ChatBody, json.dumps(body).encode()).question


@pytest.mark.parametrize(
    ("fields", "mode", "name"),
    [
        ({}, ToolMode.NONE, None),
        ({"tools": []}, ToolMode.NONE, None),
        ({"tools": None, "tool_choice": "none"}, ToolMode.NONE, None),
        ({"tools": [TOOL]}, ToolMode.AUTO, None),
        ({"tools": [TOOL], "tool_choice": "auto"}, ToolMode.AUTO, None),
        ({"tools": [TOOL], "tool_choice": "none"}, ToolMode.NONE, None),
        ({"tools": [TOOL], "tool_choice": "required"}, ToolMode.REQUIRED, None),
        ({"tools": [TOOL], "tool_choice": named("f")}, ToolMode.REQUIRED, "f"),
    ],
)
def test_whether_tools_are_called(fields: dict[str, Any], mode: ToolMode, name: str | None) -> None:
    asked = question(**fields)
    assert (asked.mode, asked.tool) == (mode, name)


def test_what_is_said_of_a_tool_reaches_the_template() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = question(tools=[tool(description="Does it.", parameters=schema, strict=True), tool(name="g")])
    one, other = asked.tools
    assert one.definition() == {
        "type": "function",
        "function": {"name": "f", "description": "Does it.", "parameters": schema},
    }
    assert (one.strict, one.field) == (True, "tools[0].function.parameters")
    assert other.schema() == {"type": "object", "properties": {}, "additionalProperties": False}
    assert not other.strict


@pytest.mark.parametrize(
    ("value", "parallel"), [({}, True), ({"parallel_tool_calls": None}, True), ({"parallel_tool_calls": False}, False)]
)
def test_parallel_calls_are_allowed_unless_they_are_not(value: dict[str, Any], parallel: bool) -> None:
    assert question(tools=[TOOL], **value).parallel is parallel


def test_messages_with_calls_and_answers_are_turns() -> None:
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}], "reasoning_content": "Hm."},
        {**ANSWER, "name": "f", "content": [{"type": "text", "text": "2"}]},
        {"role": "assistant", "content": "Two.", "tool_calls": [], "reasoning": "So."},
        {"role": "assistant", "reasoning_content": "Cut off"},
        {"role": "assistant", "tool_calls": [CALL], "refusal": None, "audio": None, "function_call": None},
    ]
    called = (Call("call_1", "f", '{"a": 1}'),)
    assert question(messages=messages).turns == [
        Turn("user", "hi"),
        Turn("assistant", "", reasoning="Hm.", calls=called),
        Turn("tool", "2", name="f", answers="call_1"),
        Turn("assistant", "Two.", reasoning="So."),
        Turn("assistant", "", reasoning="Cut off"),
        Turn("assistant", "", calls=called),
    ]


def test_the_rest_of_a_question() -> None:
    asked = question(
        chat_template_kwargs={"enable_thinking": False},
        reasoning_effort="high",
        include_reasoning=False,
        guided_regex="a+",
    )
    assert asked.variables == {"enable_thinking": False}
    assert (asked.effort, asked.thoughts) == ("high", False)
    assert asked.form == GrammarPart("guided_regex", Grammar.regex("a+"))
    plain = question()
    assert (plain.variables, plain.effort, plain.thoughts, plain.form) == ({}, None, True, None)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("f", "tools"),
        ({}, "tools"),
        ([5], "tools[0]"),
        ([{}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "web_search", "function": {"name": "f"}}], "tools[0].type"),
        ([{"type": "custom", "custom": {"name": "f"}}], "tools[0].type"),
        ([{**TOOL, "colour": "red"}], "tools[0].colour"),
        ([tool(colour="red")], "tools[0].function.colour"),
        ([tool(name="")], "tools[0].function.name"),
        ([tool(name="a b")], "tools[0].function.name"),
        ([tool(name='a"')], "tools[0].function.name"),
        ([tool(name="a\n")], "tools[0].function.name"),
        ([tool(name="x" * 129)], "tools[0].function.name"),
        ([tool(name=5)], "tools[0].function.name"),
        ([tool(description=5)], "tools[0].function.description"),
        ([tool(strict="yes")], "tools[0].function.strict"),
        ([tool(parameters=[])], "tools[0].function.parameters"),
        ([tool(parameters={"type": "string"})], "tools[0].function.parameters"),
        ([TOOL, tool(parameters={"type": ["object", "null"]}, name="g")], "tools[1].function.parameters"),
        ([TOOL, TOOL], "tools"),
        ([tool(name=f"f{number}") for number in range(MAX_TOOLS + 1)], "tools"),
    ],
)
def test_tools_that_cannot_be_called_are_refused(tools: object, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        question(tools=tools)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "choice",
    [
        *("any", "", 5, True, [], {}, "f", named("g"), named(5), named(""), {"type": "function"}),
        *({**named("f"), "x": 1}, {"type": "tool", "function": {"name": "f"}}, {"type": "function", "name": "f"}),
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}},
    ],
)
def test_other_choices_are_refused(choice: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        question(tools=[TOOL], tool_choice=choice)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("choice", ["auto", "required", named("f")])
def test_a_choice_needs_tools(choice: object) -> None:
    tools: list[object] | None
    for tools in (None, []):
        with pytest.raises(InvalidRequestError, match="only allowed with tools") as caught:
            question(tool_choice=choice, tools=tools)
        assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "2"}, "tool_call_id"),
        ({"role": "tool", "content": "2", "tool_call_id": ""}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": "call_1"}, "content"),
        ({**ANSWER, "tool_calls": [CALL]}, "tool_calls"),
        ({**USER, "tool_calls": [CALL]}, "tool_calls"),
        ({**USER, "tool_call_id": "call_1"}, "tool_call_id"),
        ({**USER, "reasoning_content": "Hm."}, "reasoning_content"),
        ({"role": "assistant"}, "content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content"),
        ({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}, "function_call"),
        ({"role": "assistant", "tool_calls": {}}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": ""}]}, "tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, "tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{**CALL, "x": 1}]}, "tool_calls[0].x"),
        ({"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f"}}]},
         "tool_calls[0].function.arguments"),
        ({"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]},
         "tool_calls[0].function.arguments"),
        ({"role": "assistant", "content": "x", "reasoning_content": 5}, "reasoning_content"),
    ],
)  # fmt: skip
def test_messages_that_do_not_go_together_are_refused(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        question(messages=[USER, message])
    assert caught.value.param == f"messages[1].{param}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
        ({"reasoning_effort": "very"}, "reasoning_effort"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"include_reasoning": "yes"}, "include_reasoning"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
    ],
)
def test_other_fields_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=param) as caught:
        question(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [TOOL]),
        ("tool_choice", "auto"),
        ("reasoning_effort", "low"),
        ("chat_template_kwargs", {"a": 1}),
        ("include_reasoning", False),
    ],
)
def test_completions_have_none_of_it(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        parse_body(CompletionBody, json.dumps({"prompt": "x", field: value}).encode())
    assert caught.value.param == field

"""What the body of a response may say, and how what it may not is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from llamalane.api.bodies import parse_body
from llamalane.api.reply import Question, ToolMode, Turn
from llamalane.api.responses.body import LOGPROBS, ResponsesBody
from llamalane.api.tool_fields import MAX_TOOLS
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import Grammar, GrammarPart

TOOL = {"type": "function", "name": "f"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}


def body(**fields: Any) -> ResponsesBody:
    return parse_body(ResponsesBody, json.dumps({"input": "hi", **fields}).encode())


def question(**fields: Any) -> Question:
    return body(**fields).question


def formatted(**fields: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "x", **fields}}


def test_instructions_come_first() -> None:
    turns = [Turn("system", "Be brief."), Turn("system", "Be kind."), Turn("user", "hi")]
    items = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    assert question(instructions="Be brief.", input=items).turns == turns
    assert question(instructions=None).turns == question(instructions="").turns == [Turn("user", "hi")]


def test_functions_are_strict_unless_they_are_not() -> None:
    tools = question(
        tools=[
            TOOL,
            {**TOOL, "name": "g", "strict": False},
            {**TOOL, "name": "h", "strict": None, "parameters": SCHEMA},
        ]
    ).tools
    assert [(tool.name, tool.strict) for tool in tools] == [("f", True), ("g", False), ("h", True)]
    assert (tools[2].field, tools[2].parameters) == ("tools[2].parameters", SCHEMA)


@pytest.mark.parametrize(
    ("fields", "mode", "name"),
    [
        ({}, ToolMode.NONE, None),
        ({"tools": [], "tool_choice": "none"}, ToolMode.NONE, None),
        ({"tool_choice": "auto"}, ToolMode.NONE, None),
        ({"tools": [TOOL]}, ToolMode.AUTO, None),
        ({"tools": [TOOL], "tool_choice": "required"}, ToolMode.REQUIRED, None),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, ToolMode.REQUIRED, "f"),
    ],
)
def test_whether_functions_are_called(fields: dict[str, Any], mode: ToolMode, name: str | None) -> None:
    asked = question(**fields)
    assert (asked.mode, asked.tool) == (mode, name)


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        (None, None),
        ({}, None),
        ({"format": None, "verbosity": "medium"}, None),
        ({"format": {"type": "text"}}, None),
        ({"format": {"type": "json_object"}}, Grammar.json_object()),
        (formatted(schema=SCHEMA, strict=True, description="y"), Grammar.json_schema(SCHEMA)),
    ],
)
def test_the_form_of_the_text(text: object, grammar: Grammar | None) -> None:
    asked = body(text=text)
    assert asked.sampling.grammar == grammar
    assert asked.question.form == (None if grammar is None else GrammarPart("text.format", grammar))


def test_the_rest_of_a_question() -> None:
    asked = question(
        parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto", "generate_summary": None},
        chat_template_kwargs={"enable_thinking": False},
        include_reasoning=False,
    )
    assert (asked.parallel, asked.effort, asked.thoughts) == (False, "low", False)
    assert asked.variables == {"enable_thinking": False}
    plain = question()
    assert (plain.parallel, plain.effort, plain.thoughts, plain.variables) == (True, None, True, {})


def test_how_tokens_are_chosen() -> None:
    sampling = body(max_output_tokens=7, temperature=0.5, top_p=0.9, top_k=3, seed=5, min_p=0.1).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.9, 3)
    assert (sampling.seed, sampling.min_p, sampling.logprobs) == (5, 0.1, None)
    assert body(include=[LOGPROBS]).sampling.logprobs == 0
    assert body(include=[LOGPROBS, "reasoning.encrypted_content"], top_logprobs=4).sampling.logprobs == 4


def test_what_changes_nothing_is_taken() -> None:
    body(
        store=True, background=False, truncation="disabled", prompt_cache_key="a", safety_identifier="b", user="c",
        metadata={"a": "b"}, max_tool_calls=3, include=[], stream=True, stream_options={"include_obfuscation": True},
        top_logprobs=0, previous_response_id=None, conversation=None, prompt=None, moderation=None,
        prompt_cache_retention="24h", service_tier="auto",
    )  # fmt: skip
    assert body(user="ann").end_user == "ann"


@pytest.mark.parametrize(
    ("fields", "param", "advice"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation as input"),
        ({"conversation": "conv_1"}, "conversation", "send the whole conversation as input"),
        ({"conversation": {"id": "conv_1"}}, "conversation", "send the whole conversation as input"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "send its text as instructions and input"),
        ({"background": True}, "background", "keep the connection open"),
        ({"truncation": "auto"}, "truncation", 'except as "disabled"'),
        ({"include": ["file_search_call.results"]}, "include[0]", "not supported"),
        ({"include": [LOGPROBS, "code_interpreter_call.outputs"]}, "include[1]", "not supported"),
        ({"include": "all"}, "include", "not valid"),
        ({"top_logprobs": 2}, "top_logprobs", "only allowed when include has"),
        ({"include": [LOGPROBS], "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"moderation": {}}, "moderation", "not supported"),
        ({"context_management": []}, "context_management", "not supported"),
        ({"messages": []}, "messages", "here it is input"),
        ({"max_tokens": 5}, "max_tokens", "here it is max_output_tokens"),
        ({"response_format": {"type": "text"}}, "response_format", "here it is text.format"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "here it is reasoning.effort"),
        ({"stop": ["x"]}, "stop", "not supported"),
        ({"n": 2}, "n", "not supported"),
        ({"colour": "red"}, "colour", "unrecognized field"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "only allowed when stream is true"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage", "not valid"),
        ({"store": "yes"}, "store", "not valid"),
        ({"metadata": {"a": 5}}, "metadata.a", "not valid"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "not valid"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata", "not valid"),
        ({"user": "x" * 513}, "user", "not valid"),
        ({"instructions": [{"role": "system", "content": "x"}]}, "instructions", "not valid"),
        ({"max_output_tokens": -1}, "max_output_tokens", "got -1"),
        ({"max_output_tokens": "many"}, "max_output_tokens", "not valid"),
        ({"temperature": -1}, "temperature", "got -1"),
        ({"reasoning": "high"}, "reasoning", "not valid"),
        ({"reasoning": {"effort": "very"}}, "reasoning.effort", "must be one of"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", 'except as "auto"'),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "not supported"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", 'except as "medium"'),
        ({"text": {"colour": "red"}}, "text.colour", "not supported"),
        ({"text": {"format": "json"}}, "text.format", "an object whose type is"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "an object whose type is"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format", "unrecognized field 'schema'"),
        ({"text": formatted()}, "text.format", "as its schema"),
        ({"text": formatted(schema=SCHEMA, json_schema={})}, "text.format", "unrecognized field 'json_schema'"),
        ({"text": formatted(schema=SCHEMA, strict=1)}, "text.format", "true or false"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "which the server does"),
        ({"tool_choice": "required"}, "tool_choice", "only allowed with tools"),
        ({"input": []}, "input", "1 to 10000 items"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(fields: dict[str, Any], param: str, advice: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(advice)) as caught:
        body(**fields)
    assert caught.value.param == param


def test_an_input_is_needed() -> None:
    with pytest.raises(InvalidRequestError, match="input is missing"):
        parse_body(ResponsesBody, b"{}")


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("f", "tools"),
        ([5], "tools[0]"),
        ([{"name": "f"}], "tools[0]"),
        ([{"type": "web_search"}], "tools[0]"),
        ([TOOL, {"type": "mcp", "server_label": "x"}], "tools[1]"),
        ([{"type": "custom", "name": "f"}], "tools[0]"),
        ([{"type": "function", "function": {"name": "f"}}], "tools[0].name"),
        ([{**TOOL, "defer_loading": True}], "tools[0].defer_loading"),
        ([{**TOOL, "name": "a b"}], "tools[0].name"),
        ([{**TOOL, "parameters": {"type": "string"}}], "tools[0].parameters"),
        ([TOOL, TOOL], "tools"),
        ([{**TOOL, "name": f"f{number}"} for number in range(MAX_TOOLS + 1)], "tools"),
    ],
)
def test_tools_that_cannot_be_called_are_refused(tools: object, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        question(tools=tools)
    assert caught.value.param == param


def test_a_built_in_tool_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="'web_search' is not supported: only functions are"):
        question(tools=[{"type": "web_search"}])


@pytest.mark.parametrize(
    "choice",
    [
        *("any", 5, [], {}, {"type": "function"}, {"type": "function", "name": "g"}, {"type": "function", "name": 5}),
        *({"type": "function", "function": {"name": "f"}}, {"type": "web_search"}, {"type": "custom", "name": "f"}),
        {"type": "allowed_tools", "mode": "auto", "tools": [TOOL]},
    ],
)
def test_other_choices_are_refused(choice: object) -> None:
    with pytest.raises(InvalidRequestError, match="tool_choice") as caught:
        question(tools=[TOOL], tool_choice=choice)
    assert caught.value.param == "tool_choice"

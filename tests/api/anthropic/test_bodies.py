"""What bodies in Anthropic's shape may hold, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llamalane.api.anthropic.bodies import CountTokensBody, MessagesBody
from llamalane.api.bodies import parse_body
from llamalane.api.reply import ToolMode
from llamalane.errors import InvalidRequestError
from tests.api.anthropic.asking import BODY, MESSAGES, TOOLS

ASSISTANT = {"role": "assistant", "content": "It is "}
BEGUN = [*MESSAGES, ASSISTANT]
FORM = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
CALL = {"type": "tool_use", "id": "a", "name": "get_time", "input": {}}


def read(**fields: Any) -> MessagesBody:
    return parse_body(MessagesBody, json.dumps({**BODY, **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x", "name": "ann"}]}, "messages[0].name"),
        ({"messages": [ASSISTANT]}, "messages[0]"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": [CALL]}]}, "messages[1]"),
        (
            {"messages": [*MESSAGES, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}]},
            "messages[1]",
        ),
        ({"messages": BEGUN, "thinking": {"type": "enabled", "budget_tokens": 8}}, "messages[1]"),
        ({"messages": BEGUN, "output_config": FORM}, "messages[1]"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image", "source": {}}]}, "system[0]"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stream": "yes"}, "stream"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"metadata": {"user": "x"}}, "metadata.user"),
        ({"metadata": {"user_id": "x" * 513}}, "metadata.user_id"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 64}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 8}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "display": "loud"}}, "thinking.display"),
        ({"output_config": {"effort": "none"}}, "output_config.effort"),
        ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": FORM["format"]}, "output_format"),
        ({"container": "x"}, "container"),
        ({"diagnostics": {"previous_message_id": "x"}}, "diagnostics"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"mcp_servers": [{"type": "url", "url": "x", "name": "y"}]}, "mcp_servers"),
        ({"speed": "fast"}, "speed"),
        ({"compaction": {"type": "x"}}, "compaction"),
        ({"fallbacks": [{}]}, "fallbacks"),
        ({"thread": {}}, "thread"),
        ({"user_profile_id": "x"}, "user_profile_id"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0]"),
        ({"n": 2}, "n"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"stop": "x"}, "stop"),
        ({"response_format": {}}, "response_format"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(**fields)
    assert caught.value.param == param
    assert param.split(".")[-1] in str(caught.value)


def test_an_empty_stop_sequence_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="a stop string must have from 1") as caught:
        read(stop_sequences=[""])
    assert caught.value.param == "stop_sequences"


def test_the_bound_of_an_answer_has_to_be_there() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens is missing"):
        parse_body(MessagesBody, json.dumps({"messages": MESSAGES}).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_control": {"type": "ephemeral"}},
        {"container": None, "inference_geo": None, "diagnostics": None, "speed": "standard", "mcp_servers": []},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"context_management": {"edits": []}},
        {"context_management": None, "thinking": None, "tools": None, "tool_choice": None, "system": None},
        {"metadata": {}, "output_config": {}, "stop_sequences": []},
        {"system": []},
        {"system": ""},
        {"tool_choice": {"type": "none"}},
        {"tool_choice": {"type": "auto"}},
    ],
)
def test_what_changes_nothing_is_taken(fields: dict[str, Any]) -> None:
    assert read(**fields).question == read().question


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "bash_20250124", "name": "bash"}, "tools[0].type"),
        ({"type": "web_search_20250305", "name": "web_search", "max_uses": 5}, "tools[0].type"),
        ({"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}, "tools[0].type"),
        ({"type": "computer_toolset_20260801"}, "tools[0].type"),
        ({"name": "f"}, "tools[0].input_schema"),
        ({"name": "f", "input_schema": {"type": "array"}}, "tools[0].input_schema"),
        ({"name": "f", "input_schema": "x"}, "tools[0].input_schema"),
        ({"name": "f g", "input_schema": {}}, "tools[0].name"),
        ({"input_schema": {}}, "tools[0].name"),
        ({"name": "f", "input_schema": {}, "defer_loading": True}, "tools[0].defer_loading"),
        ({"name": "f", "input_schema": {}, "allowed_callers": ["code_execution_20250825"]}, "tools[0].allowed_callers"),
        ({"name": "f", "input_schema": {}, "input_examples": [{}]}, "tools[0].input_examples"),
        ({"name": "f", "input_schema": {}, "parameters": {}}, "tools[0].parameters"),
        ({"name": "f", "input_schema": {}, "strict": "yes"}, "tools[0].strict"),
    ],
)
def test_tools_that_cannot_be_called_are_refused_by_name(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(tools=[tool])
    assert caught.value.param == param


def test_tools_are_as_their_fields_say() -> None:
    more = {
        "type": "custom",
        "strict": True,
        "cache_control": {"type": "ephemeral"},
        "eager_input_streaming": True,
        "defer_loading": False,
        "allowed_callers": ["direct"],
        "input_examples": [],
    }
    first, second = read(tools=[{**TOOLS[0], **more}, TOOLS[1]]).question.tools
    assert (first.name, first.description, first.strict) == ("get_weather", "The weather in a city.", True)
    assert (second.description, second.strict, second.field) == (None, False, "tools[1].input_schema")


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "tool"}, "tool_choice.name"),
        ({"type": "tool", "name": "nobody"}, "tool_choice.name"),
        ({"type": "any", "name": "get_time"}, "tool_choice.name"),
        ({"type": "required"}, "tool_choice.type"),
        ("auto", "tool_choice"),
        ({"type": "auto", "disable_parallel_tool_use": "no"}, "tool_choice.disable_parallel_tool_use"),
    ],
)
def test_choices_that_cannot_be_made_are_refused(choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(tools=TOOLS, tool_choice=choice)
    assert caught.value.param == param


def test_tools_that_are_not_there_cannot_be_demanded() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        with pytest.raises(InvalidRequestError) as caught:
            read(tool_choice=choice)
        assert caught.value.param == "tool_choice"
    with pytest.raises(InvalidRequestError, match="two tools are called 'get_time'"):
        read(tools=[TOOLS[1], TOOLS[1]])


def test_the_choice_of_a_tool_is_a_demand() -> None:
    question = read(tools=TOOLS, tool_choice={"type": "tool", "name": "get_time"}).question
    assert (question.mode, question.tool, question.parallel) == (ToolMode.REQUIRED, "get_time", True)


def test_what_is_counted_is_what_would_be_asked() -> None:
    fields: dict[str, Any] = {
        "messages": BEGUN,
        "system": "Be brief.",
        "tools": TOOLS,
        "tool_choice": {"type": "any"},
        "thinking": {"type": "adaptive"},
        "model": "x",
    }
    counted = parse_body(CountTokensBody, json.dumps(fields).encode())
    assert counted.question == read(**fields).question


@pytest.mark.parametrize("fields", [{"max_tokens": 5}, {"stream": True}, {"priority": 1}, {"speed": "fast"}])
def test_what_cannot_be_counted_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(CountTokensBody, json.dumps({"messages": MESSAGES, **fields}).encode())
    assert caught.value.param in fields


def test_a_body_that_is_large_is_taken_apart_in_time() -> None:
    blocks = [{"type": "text", "text": "x"}] * 20_000
    assert len(read(messages=[{"role": "user", "content": blocks}]).question.turns) == 1

"""What is asked and told in Anthropic's shape, through the real client, with replies that the tests have written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message, ThinkingBlock, ToolUseBlock

from llamalane.api.config import ApiConfig
from llamalane.api.reply import Reply, ToolFormat
from llamalane.scheduler import FinishReason
from tests.api.anthropic.asking import (
    BODY,
    MESSAGES,
    MESSAGES_PATH,
    TOOLS,
    client_of,
    engine_for,
    pieces,
    prompt_of,
)
from tests.api.fake_engine import Play, ScriptedEngine, sampling_of
from tests.api.reply.recorded import CALLED, NAMES
from tests.api.reply.test_plan import NATIVE
from tests.models import chat_templates as templates

RECORDED_TOOLS: list[Any] = [{"name": name, "input_schema": {"type": "object"}} for name in sorted(NAMES)]
THOUGHT = "<think>\nIt is Norway.\n</think>\n\nIt rains."
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "Europe/Oslo"}}\n</tool_call>'


def both_ways(engine: ScriptedEngine, *plays: Play, **fields: Any) -> tuple[Message, Message]:
    """Ask the same twice, once as a stream; `plays` are what comes then."""
    engine.plays.extend(plays)
    options = {"model": "scripted", "max_tokens": 64, "messages": MESSAGES, **fields}
    with client_of(engine) as client:
        with client.messages.stream(**options) as stream:
            streamed = stream.get_final_message()
        return streamed, client.messages.create(**options)


def blocks_of(message: Message) -> list[dict[str, Any]]:
    """The content of a message, as it was told."""
    return [
        {name: value for name, value in block.to_dict().items() if name != "parsed_output"} for block in message.content
    ]


@pytest.mark.parametrize("format", ToolFormat)
def test_calls_are_told_streamed_or_not(format: ToolFormat) -> None:
    recordings = [one for one in CALLED if one.format is format and not one.reply.reasoning]
    engine = engine_for(
        NATIVE[format], *(play for one in recordings for play in (Play(pieces(one.text)), Play([one.text])))
    )
    options: dict[str, Any] = {"model": "scripted", "max_tokens": 4000, "messages": MESSAGES, "tools": RECORDED_TOOLS}
    with client_of(engine) as client:
        for recorded in recordings:
            with client.messages.stream(**options) as stream:
                check(stream.get_final_message(), recorded.reply)
            check(client.messages.create(**options), recorded.reply)


def check(message: Message, reply: Reply) -> None:
    """Check that a message is a reply with calls."""
    calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
    assert [(call.name, call.input) for call in calls] == [
        (call.name, json.loads(call.arguments or "{}")) for call in reply.calls
    ]
    assert len({call.id for call in calls}) == len(calls)
    assert "".join(block.text for block in message.content if block.type == "text") == reply.content
    assert message.stop_reason == "tool_use"


def test_text_around_calls_keeps_its_place() -> None:
    text = f"Let me see.\n{CALL}\nAnd also:\n{CALL}"
    for message in both_ways(engine_for(templates.HERMES), Play(pieces(text)), Play([text]), tools=TOOLS):
        assert [block.type for block in message.content] == ["text", "tool_use", "text", "tool_use"]
        assert [block["text"] for block in blocks_of(message) if block["type"] == "text"] == [
            "Let me see.",
            "And also:",
        ]


def test_a_call_that_is_cut_off_tells_what_can_be_read_of_it() -> None:
    text = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "Europe/Oslo", "at": [1, 2'
    play = Play(pieces(text), finish=FinishReason.LENGTH)
    streamed, whole = both_ways(engine_for(templates.HERMES), play, play, tools=TOOLS, max_tokens=len(play.texts))
    for message in (streamed, whole):
        [call] = message.content
        assert isinstance(call, ToolUseBlock)
        assert call.input["zone"] == "Europe/Oslo"
        assert message.stop_reason == "max_tokens"
    assert blocks_of(whole)[0]["partial_json"] == '{"zone": "Europe/Oslo", "at": [1, 2'


@pytest.mark.parametrize("arguments", ['{"zone": 1e999}', '{"zone": "\\ud800"}'])
def test_a_call_that_no_json_can_hold_is_told_as_text(arguments: str) -> None:
    text = f'<tool_call>\n{{"name": "get_time", "arguments": {arguments}}}\n</tool_call>'
    with client_of(engine_for(templates.HERMES, Play([text]))) as client:
        message = client.messages.create(model="scripted", max_tokens=64, messages=MESSAGES, tools=TOOLS)
    [call] = blocks_of(message)
    assert (call["input"], call["partial_json"]) == ({}, arguments)


def test_without_parallel_calls_the_first_is_the_last() -> None:
    engine = engine_for(templates.HERMES)
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    plays = Play(pieces(f"{CALL}\n{CALL}")), Play([f"{CALL}\n{CALL}"])
    for message in both_ways(engine, *plays, tools=TOOLS, tool_choice=choice):
        assert [block.type for block in message.content] == ["tool_use"]
    for handle in engine.handles:
        stop_when = handle.options["stop_when"]
        assert stop_when is not None
        assert stop_when()(f"{CALL}\n{CALL}")


@pytest.mark.parametrize(
    ("choice", "told", "forced"),
    [(None, True, False), ("auto", True, False), ("any", True, True), ("tool", True, True), ("none", False, False)],
)
def test_a_choice_of_tools_is_made(choice: str | None, told: bool, forced: bool) -> None:
    engine = engine_for(templates.HERMES)
    name = {"name": "get_time"} if choice == "tool" else {}
    fields = {} if choice is None else {"tool_choice": {"type": choice, **name}}
    with client_of(engine) as client:
        client.post(MESSAGES_PATH, body={**BODY, "tools": TOOLS, **fields}, cast_to=object)
    [handle] = engine.handles
    assert ("<tools>" in prompt_of(handle)) is told
    grammar = sampling_of(handle).grammar
    assert (grammar is not None) is forced
    if grammar is not None:
        assert ("get_weather" in grammar.text) is (choice == "any")


def test_thoughts_are_blocks_streamed_or_not() -> None:
    expected = [
        {"type": "thinking", "thinking": "It is Norway.", "signature": ""},
        {"type": "text", "text": "It rains."},
    ]
    for message in both_ways(engine_for(templates.THINKING), Play(pieces(THOUGHT)), Play([THOUGHT])):
        assert blocks_of(message) == expected
        assert isinstance(message.content[0], ThinkingBlock)
        assert message.stop_reason == "end_turn"


def test_thoughts_can_be_left_out() -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    plays = Play(pieces(THOUGHT)), Play([THOUGHT])
    for message in both_ways(engine_for(templates.THINKING), *plays, thinking=thinking):
        assert blocks_of(message) == [{"type": "text", "text": "It rains."}]


@pytest.mark.parametrize(
    ("source", "fields", "end"),
    [
        (templates.THINKING, {}, "assistant\n"),
        (templates.THINKING, {"thinking": {"type": "disabled"}}, "</think>\n\n"),
        (templates.THINKING, {"thinking": {"type": "adaptive"}}, "assistant\n"),
        (templates.THINKING, {"thinking": {"type": "enabled", "budget_tokens": 32}}, "assistant\n"),
        (templates.THINKING, {"output_config": {"effort": "low"}}, "assistant\n"),
        (templates.ALWAYS_THINKING, {"thinking": {"type": "enabled"}}, "<think>\n"),
        (templates.PLAIN, {"thinking": {"type": "adaptive"}}, "assistant\n"),
        (templates.PLAIN, {"thinking": {"type": "disabled"}}, "assistant\n"),
        (templates.EFFORT, {"output_config": {"effort": "max"}}, "Effort: max"),
        (templates.EFFORT, {"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, "Effort: none"),
        (
            "{{ thinking_budget }}{{ enable_thinking }}</think>",
            {"thinking": {"type": "enabled", "budget_tokens": 63}},
            "63True</think>",
        ),
    ],
)
def test_how_to_think_reaches_the_template(source: str, fields: dict[str, Any], end: str) -> None:
    engine = engine_for(source)
    with client_of(engine) as client:
        client.post(MESSAGES_PATH, body={**BODY, **fields}, cast_to=object)
    assert prompt_of(engine.handles[0]).endswith(end)


def test_an_answer_goes_on_from_what_the_assistant_said_last() -> None:
    engine = engine_for(templates.PLAIN)
    messages = [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "It is "}]}]
    for message in both_ways(engine, Play(["wet."]), Play(["wet."]), messages=messages):
        assert blocks_of(message) == [{"type": "text", "text": "wet."}]
    assert all(prompt_of(handle).endswith("assistant\nIt is ") for handle in engine.handles)


def test_an_answer_may_begin_with_nothing() -> None:
    engine = engine_for(templates.PLAIN)
    for content in ("", []):
        messages: Any = [*MESSAGES, {"role": "assistant", "content": content}]
        with client_of(engine) as client:
            client.messages.create(model="scripted", max_tokens=64, messages=messages)
    assert all(prompt_of(handle).endswith("assistant\n") for handle in engine.handles)


@pytest.mark.parametrize(
    ("play", "fields", "reason"),
    [
        (Play(["It", " rains."]), {}, "end_turn"),
        (Play([]), {}, "end_turn"),
        (Play(["It", " rains."], FinishReason.LENGTH), {"max_tokens": 2}, "max_tokens"),
        (Play(["It", " rains."], FinishReason.LENGTH), {"max_tokens": 3}, "model_context_window_exceeded"),
        (Play(["It"], stop="rains"), {"stop_sequences": ["rains"]}, "stop_sequence"),
        (Play([CALL]), {"tools": TOOLS}, "tool_use"),
        (Play([CALL], stop="rains"), {"tools": TOOLS, "stop_sequences": ["rains"]}, "stop_sequence"),
    ],
)
def test_it_is_told_why_an_answer_ended(play: Play, fields: dict[str, Any], reason: str) -> None:
    engine = engine_for(templates.HERMES)
    for message in both_ways(engine, play, play, **fields):
        assert (message.stop_reason, message.stop_sequence) == (reason, play.stop)
        assert bool(message.content) is bool(play.texts)
    assert all(sampling_of(handle).stop == tuple(fields.get("stop_sequences", ())) for handle in engine.handles)


def test_what_was_cached_stands_apart() -> None:
    play = Play(["a", "b"], prompt_tokens=100, cached_tokens=90)
    engine = ScriptedEngine()
    for message in both_ways(engine, play, play, service_tier="standard_only"):
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (10, 90, 0)
        assert usage.output_tokens == 2
        assert usage.service_tier == "standard"
    assert [handle.options.get("priority") for handle in engine.handles] == [3, 3]


def test_a_message_begins_with_what_is_known_of_it() -> None:
    play = Play(["a", "b"], prompt_tokens=100, cached_tokens=90)
    with client_of(ScriptedEngine([play])) as client:
        stream = client.messages.create(
            model="other", max_tokens=64, messages=MESSAGES, stream=True, extra_body={"priority": 2}
        )
        events = list(stream)
    assert [event.type for event in events] == [
        "message_start", "content_block_start", *["content_block_delta"] * 2, "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    first = events[0]
    assert first.type == "message_start"
    assert first.message.id.startswith("msg-")
    assert (first.message.content, first.message.stop_reason, first.message.model) == ([], None, "scripted")
    assert (first.message.usage.input_tokens, first.message.usage.cache_read_input_tokens) == (10, 90)
    assert (first.message.model_extra or {})["priority"] == 2
    assert events[-2].to_dict().keys() >= {"seed", "timings"}


def test_our_own_fields_are_taken() -> None:
    engine = ScriptedEngine()
    own = {"priority": "batch", "deadline": 60, "supersede": "key", "seed": 7, "min_p": 0.2, "repeat_penalty": 1.1}
    with client_of(engine) as client:
        raw = client.messages.with_raw_response.create(
            model="scripted", max_tokens=9, messages=MESSAGES, extra_body={**own, "temperature": 0.5, "top_k": 5}
        )
    [handle] = engine.handles
    assert raw.headers["x-priority"] == "5"
    assert (handle.options["deadline"], handle.options["supersede"]) == (60, "key")
    sampling = sampling_of(handle)
    assert (sampling.seed, sampling.min_p, sampling.repeat_penalty) == (7, 0.2, 1.1)
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.5, 5, 9)


def test_a_bound_above_what_a_sequence_holds_lets_it_fill() -> None:
    engine = ScriptedEngine()
    with client_of(engine) as client:
        for most in (engine.limit, engine.limit + 1):
            client.messages.create(model="scripted", max_tokens=most, messages=MESSAGES)
    assert [sampling_of(handle).max_tokens for handle in engine.handles] == [engine.limit, None]


def test_the_end_user_can_be_the_tenant() -> None:
    engine = ScriptedEngine()
    with client_of(engine, api=ApiConfig(tenant_from_user=True)) as client:
        client.messages.create(model="scripted", max_tokens=9, messages=MESSAGES, metadata={"user_id": "ann"})
        client.messages.create(model="scripted", max_tokens=9, messages=MESSAGES, metadata={"user_id": None})
    assert [handle.options.get("tenant") for handle in engine.handles] == ["ann", ""]


def test_a_form_is_kept_to() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    engine = ScriptedEngine()
    with client_of(engine) as client:
        client.messages.create(
            model="scripted",
            max_tokens=9,
            messages=MESSAGES,
            output_config={"format": {"type": "json_schema", "schema": schema}},
        )
    grammar = sampling_of(engine.handles[0]).grammar
    assert grammar is not None
    assert json.loads(grammar.text) == schema


def test_headers_of_anthropic_s_clients_change_nothing() -> None:
    engine = ScriptedEngine()
    with client_of(engine) as client:
        answer = client.beta.messages.create(
            model="scripted", max_tokens=9, messages=[{"role": "user", "content": "x"}], betas=["files-api-2025-04-14"]
        )
    assert answer.content[0].type == "text"

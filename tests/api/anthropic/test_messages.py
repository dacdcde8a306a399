"""What is asked and told in Anthropic's shape, through the real client, with replies that the tests have written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from anthropic import Anthropic, BadRequestError, beta_tool
from anthropic.types import Message, ThinkingBlock, ToolUseBlock
from pydantic_core import from_json

from llamalane.api.config import ApiConfig
from llamalane.api.reply import Reply, ToolFormat
from llamalane.scheduler import FinishReason
from tests.api.anthropic.asking import MESSAGES, TOOLS, client_of, pieces, prompt_of
from tests.api.fake_engine import Play, ScriptedEngine, ScriptedHandle, sampling_of
from tests.api.reply.recorded import CALLED, NAMES
from tests.api.reply.test_plan import NATIVE
from tests.models import chat_templates as templates
from tests.models.chat_templates import template_of

RECORDED_TOOLS: list[Any] = [{"name": name, "input_schema": {"type": "object"}} for name in sorted(NAMES)]
THOUGHT = "<think>\nIt is Norway.\n</think>\n\nIt rains."
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "Europe/Oslo"}}\n</tool_call>'


@dataclass(frozen=True)
class Stage:
    """A client of a server whose engine follows the plays that a test sets."""

    engine: ScriptedEngine
    client: Anthropic

    def set(self, source: str, *plays: Play) -> None:
        """Let the model have the chat template `source`, and `plays` come next."""
        self.engine.chat_template = template_of(source)
        self.engine.plays[:] = plays
        self.engine.handles.clear()

    def ask(self, **fields: Any) -> Message:
        answer = self.client.messages.create(**{"model": "scripted", "max_tokens": 64, "messages": MESSAGES, **fields})
        assert isinstance(answer, Message)
        return answer

    def ask_streaming(self, **fields: Any) -> Message:
        options = {"model": "scripted", "max_tokens": 64, "messages": MESSAGES, **fields}
        with self.client.messages.stream(**options) as stream:
            return stream.get_final_message()

    def ask_twice(self, **fields: Any) -> tuple[Message, Message]:
        """Ask the same twice, first as a stream."""
        return self.ask_streaming(**fields), self.ask(**fields)

    @property
    def handles(self) -> list[ScriptedHandle]:
        return self.engine.handles


@pytest.fixture(scope="module")
def server() -> Iterator[Stage]:
    engine = ScriptedEngine()
    with client_of(engine) as client:
        yield Stage(engine, client)


@pytest.fixture
def stage(server: Stage) -> Stage:
    server.set(templates.PLAIN)
    return server


def blocks_of(message: Message) -> list[dict[str, Any]]:
    """The content of a message, as it was told."""
    return [
        {name: value for name, value in block.to_dict().items() if name != "parsed_output"} for block in message.content
    ]


@pytest.mark.parametrize("format", ToolFormat)
def test_calls_are_told_streamed_or_not(stage: Stage, format: ToolFormat) -> None:
    for recorded in (one for one in CALLED if one.format is format and not one.reply.reasoning):
        stage.set(NATIVE[format], Play(pieces(recorded.text)), Play([recorded.text]))
        for message in stage.ask_twice(tools=RECORDED_TOOLS, max_tokens=4000):
            check(message, recorded.reply)


def check(message: Message, reply: Reply) -> None:
    """Check that a message is a reply with calls."""
    calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
    assert [(call.name, call.input) for call in calls] == [
        (call.name, from_json(call.arguments or "{}", allow_partial=True)) for call in reply.calls
    ]
    assert len({call.id for call in calls}) == len(calls)
    assert "".join(block.text for block in message.content if block.type == "text") == reply.content
    assert message.stop_reason == "tool_use"


def test_text_around_calls_keeps_its_place(stage: Stage) -> None:
    text = f"Let me see.\n{CALL}\nAnd also:\n{CALL}"
    stage.set(templates.HERMES, Play(pieces(text)), Play([text]))
    for message in stage.ask_twice(tools=TOOLS):
        assert [block.type for block in message.content] == ["text", "tool_use", "text", "tool_use"]
        assert [block["text"] for block in blocks_of(message) if block["type"] == "text"] == [
            "Let me see.",
            "And also:",
        ]


def test_a_call_that_is_cut_off_tells_what_can_be_read_of_it(stage: Stage) -> None:
    text = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "Europe/Oslo", "at": [1, 2'
    play = Play(pieces(text), finish=FinishReason.LENGTH)
    stage.set(templates.HERMES, play, play)
    streamed, whole = stage.ask_twice(tools=TOOLS, max_tokens=len(play.texts))
    for message in (streamed, whole):
        [call] = message.content
        assert isinstance(call, ToolUseBlock)
        assert call.input["zone"] == "Europe/Oslo"
        assert message.stop_reason == "max_tokens"
    assert blocks_of(whole)[0]["partial_json"] == '{"zone": "Europe/Oslo", "at": [1, 2'


def test_a_call_that_was_cut_off_can_be_sent_back(stage: Stage) -> None:
    text = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "Europe/Oslo", "at": [1, 2'
    stage.set(templates.HERMES, Play([text], finish=FinishReason.LENGTH), Play(["It is late."]))
    cut = stage.ask(tools=TOOLS)
    [call] = cut.content
    assert isinstance(call, ToolUseBlock)
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "invalid input", "is_error": True}
    stage.ask(
        tools=TOOLS,
        messages=[*MESSAGES, {"role": "assistant", "content": cut.content}, {"role": "user", "content": [result]}],
    )
    assert json.dumps(blocks_of(cut)[0]["partial_json"]) in prompt_of(stage.engine.handles[-1])


@pytest.mark.parametrize("arguments", ['{"zone": 1e999}', '{"zone": "\\ud800"}'])
def test_a_call_that_no_json_can_hold_is_told_as_text(stage: Stage, arguments: str) -> None:
    stage.set(templates.HERMES, Play([f'<tool_call>\n{{"name": "get_time", "arguments": {arguments}}}\n</tool_call>']))
    [call] = blocks_of(stage.ask(tools=TOOLS))
    assert (call["input"], call["partial_json"]) == ({}, arguments)


def test_without_parallel_calls_the_first_is_the_last(stage: Stage) -> None:
    text = f"{CALL}\n{CALL}"
    stage.set(templates.HERMES, Play(pieces(text)), Play([text]))
    for message in stage.ask_twice(tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}):
        assert [block.type for block in message.content] == ["tool_use"]
    for handle in stage.handles:
        stop_when = handle.options["stop_when"]
        assert stop_when is not None
        assert stop_when()(text)


@pytest.mark.parametrize(
    ("choice", "told", "forced"),
    [(None, True, False), ("auto", True, False), ("any", True, True), ("tool", True, True), ("none", False, False)],
)
def test_a_choice_of_tools_is_made(stage: Stage, choice: str | None, told: bool, forced: bool) -> None:
    stage.set(templates.HERMES)
    name = {"name": "get_time"} if choice == "tool" else {}
    stage.ask(tools=TOOLS, **({} if choice is None else {"tool_choice": {"type": choice, **name}}))
    [handle] = stage.handles
    assert ("<tools>" in prompt_of(handle)) is told
    grammar = sampling_of(handle).grammar
    assert (grammar is not None) is forced
    if grammar is not None:
        assert ("get_weather" in grammar.text) is (choice == "any")


def test_thoughts_are_blocks_streamed_or_not(stage: Stage) -> None:
    stage.set(templates.THINKING, Play(pieces(THOUGHT)), Play([THOUGHT]))
    for message in stage.ask_twice():
        assert blocks_of(message) == [
            {"type": "thinking", "thinking": "It is Norway.", "signature": ""},
            {"type": "text", "text": "It rains."},
        ]
        assert isinstance(message.content[0], ThinkingBlock)
        assert message.stop_reason == "end_turn"


def test_thoughts_can_be_left_out(stage: Stage) -> None:
    stage.set(templates.THINKING, Play(pieces(THOUGHT)), Play([THOUGHT]))
    for message in stage.ask_twice(thinking={"type": "adaptive", "display": "omitted"}):
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
            "{{ thinking_budget }}{{ enable_thinking }}{# </think> #}",
            {"thinking": {"type": "enabled", "budget_tokens": 63}},
            "63True",
        ),
    ],
)
def test_how_to_think_reaches_the_template(stage: Stage, source: str, fields: dict[str, Any], end: str) -> None:
    stage.set(source)
    stage.ask(**fields)
    assert prompt_of(stage.handles[0]).endswith(end)


@pytest.mark.parametrize(
    ("source", "fields", "param"),
    [
        (templates.PLAIN, {"thinking": {"type": "enabled", "budget_tokens": 32}}, "thinking"),
        (templates.ALWAYS_THINKING, {"thinking": {"type": "disabled"}}, "thinking"),
        (templates.PLAIN, {"output_config": {"effort": "low"}}, "output_config.effort"),
    ],
)
def test_what_a_model_cannot_do_about_thinking_is_refused(
    stage: Stage, source: str, fields: dict[str, Any], param: str
) -> None:
    stage.set(source)
    with pytest.raises(BadRequestError) as caught:
        stage.ask(**fields)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["param"] == param


def test_an_answer_goes_on_from_what_the_assistant_said_last(stage: Stage) -> None:
    stage.set(templates.PLAIN, Play(["wet."]), Play(["wet."]))
    begun = [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "It is "}]}]
    for message in stage.ask_twice(messages=begun):
        assert blocks_of(message) == [{"type": "text", "text": "wet."}]
    assert all(prompt_of(handle).endswith("assistant\nIt is ") for handle in stage.handles)


@pytest.mark.parametrize("content", ["", []])
def test_an_answer_may_begin_with_nothing(stage: Stage, content: Any) -> None:
    stage.ask(messages=[*MESSAGES, {"role": "assistant", "content": content}])
    assert prompt_of(stage.handles[0]).endswith("assistant\n")


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
def test_it_is_told_why_an_answer_ended(stage: Stage, play: Play, fields: dict[str, Any], reason: str) -> None:
    stage.set(templates.HERMES, play, play)
    for message in stage.ask_twice(**fields):
        assert (message.stop_reason, message.stop_sequence) == (reason, play.stop)
        assert bool(message.content) is bool(play.texts)
    assert all(sampling_of(handle).stop == tuple(fields.get("stop_sequences", ())) for handle in stage.handles)


def test_what_was_cached_stands_apart(stage: Stage) -> None:
    play = Play(["a", "b"], prompt_tokens=100, cached_tokens=90)
    stage.set(templates.PLAIN, play, play)
    for message in stage.ask_twice(service_tier="standard_only"):
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (10, 90, 0)
        assert usage.output_tokens == 2
    assert usage.service_tier == "standard"
    assert [handle.options.get("priority") for handle in stage.handles] == [3, 3]


def test_a_message_begins_with_what_is_known_of_it(stage: Stage) -> None:
    stage.set(templates.PLAIN, Play(["a", "b"], prompt_tokens=100, cached_tokens=90))
    events = list(
        stage.client.messages.create(
            model="other", max_tokens=64, messages=MESSAGES, stream=True, extra_body={"priority": 2}
        )
    )
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
    assert events[-2].to_dict().keys() >= {"priority", "seed", "timings"}


def test_our_own_fields_are_taken(stage: Stage) -> None:
    own = {"priority": "batch", "deadline": 60, "supersede": "key", "seed": 7, "min_p": 0.2, "repeat_penalty": 1.1}
    raw = stage.client.messages.with_raw_response.create(
        model="scripted", max_tokens=9, messages=MESSAGES, extra_body={**own, "temperature": 0.5, "top_k": 5}
    )
    [handle] = stage.handles
    assert raw.headers["x-priority"] == "5"
    assert (handle.options["deadline"], handle.options["supersede"]) == (60, "key")
    sampling = sampling_of(handle)
    assert (sampling.seed, sampling.min_p, sampling.repeat_penalty) == (7, 0.2, 1.1)
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.5, 5, 9)


def test_a_bound_above_what_a_sequence_holds_lets_it_fill(stage: Stage) -> None:
    limit = stage.engine.limit
    for most in (limit, limit + 1):
        stage.ask(max_tokens=most)
    assert [sampling_of(handle).max_tokens for handle in stage.handles] == [limit, None]


def test_the_end_user_can_be_the_tenant() -> None:
    engine = ScriptedEngine()
    with client_of(engine, api=ApiConfig(tenant_from_user=True)) as client:
        client.messages.create(model="scripted", max_tokens=9, messages=MESSAGES, metadata={"user_id": "ann"})
        client.messages.create(model="scripted", max_tokens=9, messages=MESSAGES, metadata={"user_id": None})
    assert [handle.options.get("tenant") for handle in engine.handles] == ["ann", ""]


def test_a_form_is_kept_to(stage: Stage) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    stage.ask(output_config={"format": {"type": "json_schema", "schema": schema}})
    grammar = sampling_of(stage.handles[0]).grammar
    assert grammar is not None
    assert json.loads(grammar.text) == schema


def test_headers_of_anthropic_s_clients_change_nothing(stage: Stage) -> None:
    answer = stage.client.beta.messages.create(
        model="scripted", max_tokens=9, messages=[{"role": "user", "content": "x"}], betas=["files-api-2025-04-14"]
    )
    assert answer.content[0].type == "text"


def test_the_client_s_runner_of_tools_goes_on_without_a_thread(stage: Stage) -> None:
    asked: list[str] = []

    @beta_tool
    def get_time(zone: str) -> str:
        """The time in a zone."""
        asked.append(zone)
        return "noon"

    stage.set(templates.HERMES, Play([CALL]), Play(["It is noon."]))
    runner = stage.client.beta.messages.tool_runner(
        model="scripted", max_tokens=64, tools=[get_time], messages=[{"role": "user", "content": "What time is it?"}]
    )
    assert [message.stop_reason for message in runner] == ["tool_use", "end_turn"]
    assert asked == ["Europe/Oslo"]
    assert "<tool_response>noon</tool_response>" in prompt_of(stage.handles[-1])
    with pytest.raises(BadRequestError) as caught:
        stage.ask(extra_body={"thread": {"type": "continue", "previous_message_id": "msg_1"}})
    assert caught.value.body["error"]["code"] == "thread_unsupported_request"  # type: ignore[index]  # it is an object

"""How a question is put to models of different kinds, and how their replies are to be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from llamalane.api.reply import Call, Plan, Question, Reply, Tool, ToolFormat, ToolMode, Turn, plan_reply
from llamalane.api.reply.formats import TAGS
from llamalane.errors import ChatTemplateError, InvalidRequestError
from llamalane.scheduler import Grammar, GrammarPart, ModelConfig
from llamalane.scheduler.config_machine import ReasoningFormatChoice, ToolFormatChoice
from llamalane.streams import GrammarKind
from tests.models import chat_templates as templates
from tests.models.chat_templates import template_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("get_weather", "The weather in a city.", SCHEMA, False, "tools[0].function.parameters")
TIME = Tool("get_time", None, None, False, "tools[1].function.parameters")
STRICT = Tool("get_weather", None, SCHEMA, True, "tools[0].function.parameters")
ASKED = (Turn("user", "How is it in Oslo?"),)
ANSWERED = (
    *ASKED,
    Turn("assistant", "", calls=(Call("call_1234567890", "get_weather", '{"city": "Oslo"}'),)),
    Turn("tool", "Rain", answers="call_1234567890"),
)
TWICE = (
    *ASKED,
    Turn("assistant", "Both.", calls=(Call("a", "get_weather", '{"city": "Oslo"}'), Call("b", "get_time", ""))),
    Turn("tool", "Rain", answers="a"),
    Turn("tool", "Noon", answers="b"),
    Turn("user", "And now?"),
)
FORM = GrammarPart("response_format", Grammar.json_object())
NATIVE = {
    ToolFormat.HERMES: templates.HERMES,
    ToolFormat.LLAMA3_JSON: templates.LLAMA,
    ToolFormat.MISTRAL: templates.MISTRAL,
    ToolFormat.MISTRAL_ARGS: templates.MISTRAL_ARGS,
}


def plan(source: str, *turns: Turn, model: dict[str, Any] | None = None, **fields: Any) -> Plan:
    config = ModelConfig(path=Path("m.gguf"), **(model or {}))
    return plan_reply(template_of(source), config, Question(turns=turns or ASKED, **fields))


def auto(source: str, *turns: Turn, **fields: Any) -> Plan:
    return plan(source, *turns, **{"tools": [WEATHER, TIME], "mode": ToolMode.AUTO, **fields})


@pytest.mark.parametrize(("format", "source"), NATIVE.items())
def test_a_template_that_knows_tools_gets_them_in_its_own_way(format: ToolFormat, source: str) -> None:
    made = auto(source, *ANSWERED)
    assert made.format.tool_format is format
    assert made.format.names == {"get_weather", "get_time"}
    assert "The weather in a city." in made.prompt.text
    assert '"city": "Oslo"' in made.prompt.text
    assert "Rain" in made.prompt.text
    assert "You can call functions" not in made.prompt.text
    assert made.grammar is None


@pytest.mark.parametrize("source", [templates.PLAIN, templates.TEXT_ARGUMENTS, templates.NO_SYSTEM])
def test_another_template_gets_them_in_plain_text(source: str) -> None:
    made = auto(source, *ANSWERED)
    text = made.prompt.text
    assert made.format.tool_format is ToolFormat.HERMES
    assert json.dumps(WEATHER.definition()) in text
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in text
    assert "<tool_response>\nRain\n</tool_response>" in text
    assert "tool: " not in text


def test_plain_descriptions_follow_what_the_system_says() -> None:
    text = auto(templates.PLAIN, Turn("system", "Be brief."), *ASKED).prompt.text
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions.")
    assert text.count("<|im_start|>system") == 1


def test_answers_in_a_row_are_one_turn_of_the_user_in_plain_text() -> None:
    text = auto(templates.NO_SYSTEM, *TWICE).prompt.text
    assert "<tool_response>\nRain\n</tool_response>\n<tool_response>\nNoon\n</tool_response>" in text


def test_calls_in_plain_text_follow_what_was_said() -> None:
    text = auto(templates.PLAIN, *TWICE).prompt.text
    called = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    assert "<|im_start|>assistant\nBoth.\n<tool_call>" in text
    assert f"</tool_call>\n{called}<|im_end|>" in text


def test_a_template_that_takes_one_call_at_a_time_gets_each_with_its_answer() -> None:
    text = auto(templates.LLAMA, *TWICE).prompt.text
    places = [text.index(part) for part in ('"parameters": {"city"', '"Rain"', '"parameters": {}}', '"Noon"', "now?")]
    assert places == sorted(places)
    assert text.count('"Rain"') == 1


def test_ids_of_calls_that_come_again_mean_the_newer_calls() -> None:
    again = [replace(turn, text=turn.text.replace("Rain", "Snow").replace("Noon", "Dusk")) for turn in TWICE]
    text = auto(templates.LLAMA, *TWICE, *again).prompt.text
    places = [text.index(f'"{part}"') for part in ("Rain", "Noon", "Snow", "Dusk")]
    assert places == sorted(places)
    assert all(text.count(f'"{part}"') == 1 for part in ("Rain", "Noon", "Snow", "Dusk"))


@pytest.mark.parametrize("source", [templates.MISTRAL, templates.MISTRAL_ARGS])
def test_mistral_s_ids_have_nine_letters(source: str) -> None:
    assert "[TOOL_RESULTS]call_1234" not in auto(source, *ANSWERED).prompt.text
    kept = Turn("tool", "Rain", answers="abcDEF123")
    assert "[TOOL_RESULTS]abcDEF123[TOOL_CONTENT]Rain" in auto(source, *ASKED, kept).prompt.text
    reply = auto(source).format.reader().read("[TOOL_CALLS]get_time[ARGS]{}")
    assert len(reply.calls[0].id) == 9
    assert reply.calls[0].id.isalnum()


def test_ids_of_calls_differ() -> None:
    reader = auto(templates.HERMES).format.reader()
    reply = reader.read('<tool_call>{"name": "get_time"}</tool_call>' * 3)
    assert len({call.id for call in reply.calls}) == 3
    assert all(call.id.startswith("call_") for call in reply.calls)


def test_arguments_that_are_no_json_are_given_as_they_are() -> None:
    broken = Turn("assistant", "", calls=(Call("a", "get_weather", '{"city": Oslo}'),))
    for source in (templates.HERMES, templates.PLAIN, templates.MISTRAL):
        assert "city" in auto(source, *ASKED, broken).prompt.text


def test_without_tools_nothing_of_them_is_told_or_read() -> None:
    for made in (plan(templates.HERMES), auto(templates.HERMES, mode=ToolMode.NONE)):
        assert made.format.plain
        assert made.format.marks == ()
        assert made.grammar is None
        assert "<tools>" not in made.prompt.text


def test_what_was_called_before_is_told_without_tools() -> None:
    assert "<tool_call>" in plan(templates.PLAIN, *ANSWERED).prompt.text
    assert "<tool_call>" in plan(templates.HERMES, *ANSWERED).prompt.text


def test_what_a_template_refuses_is_its_error() -> None:
    with pytest.raises(ChatTemplateError, match="take turns"):
        plan(templates.NO_SYSTEM, *ASKED, *ASKED)


def test_the_setting_goes_before_what_was_found() -> None:
    assert auto(templates.HERMES, model={"tool_format": "mistral"}).format.tool_format is ToolFormat.MISTRAL
    # A template that describes nothing has the tools described in Hermes's way, so that is how they are called.
    assert auto(templates.PLAIN, model={"tool_format": "mistral"}).format.tool_format is ToolFormat.HERMES


@pytest.mark.parametrize(("turns", "param"), [(ASKED, "tools"), (ANSWERED, "messages")])
def test_a_server_that_offers_no_tools_refuses_them(turns: tuple[Turn, ...], param: str) -> None:
    tools = [WEATHER] if param == "tools" else []
    with pytest.raises(InvalidRequestError, match="tool_format is none") as caught:
        plan(templates.HERMES, *turns, model={"tool_format": "none"}, tools=tools, mode=ToolMode.AUTO)
    assert caught.value.param == param


def test_every_format_can_be_set() -> None:
    assert set(get_args(ToolFormatChoice)) == {"auto", "none", *(format.value for format in ToolFormat)}
    assert set(get_args(ReasoningFormatChoice)) == {"auto", "none", *TAGS}


@pytest.mark.parametrize(
    ("source", "variables", "text", "reply"),
    [
        (templates.THINKING, {}, "<think>Hm.</think>Yes.", Reply("Yes.", "Hm.")),
        (templates.THINKING, {"enable_thinking": False}, "Yes.", Reply("Yes.")),
        (templates.ALWAYS_THINKING, {}, "Hm.</think>Yes.", Reply("Yes.", "Hm.")),
        (templates.MISTRAL_ARGS, {}, "[THINK]Hm.[/THINK]Yes.", Reply("Yes.", "Hm.")),
        (templates.HERMES, {}, "<think>Hm.</think>Yes.", Reply("<think>Hm.</think>Yes.")),
    ],
)
def test_thoughts_are_read_as_the_prompt_leaves_off(
    source: str, variables: dict[str, Any], text: str, reply: Reply
) -> None:
    made = plan(source, variables=variables)
    assert made.format.reader().read(text) == reply
    assert made.format.plain == (not reply.reasoning)
    assert bool(made.format.marks) == bool(reply.reasoning)


def test_thoughts_can_be_told_as_part_of_the_answer() -> None:
    made = plan(templates.ALWAYS_THINKING, model={"reasoning_format": "none"})
    assert made.format.plain
    set_by_hand = plan(templates.PLAIN, model={"reasoning_format": "mistral"})
    assert set_by_hand.format.reader().read("[THINK]Hm.[/THINK]Yes.") == Reply("Yes.", "Hm.")
    left_out = plan(templates.ALWAYS_THINKING, thoughts=False)
    assert left_out.format.reader().read("Hm.</think>Yes.") == Reply("Yes.")


@pytest.mark.parametrize(
    ("source", "effort", "end"),
    [
        (templates.EFFORT, "high", "Effort: high"),
        (templates.THINKING, "none", "</think>\n\n"),
        (templates.THINKING, "low", "assistant\n"),
        (templates.PLAIN, "none", "assistant\n"),
    ],
)
def test_how_hard_to_think_reaches_templates_that_know_it(source: str, effort: str, end: str) -> None:
    assert plan(source, effort=effort).prompt.text.endswith(end)


@pytest.mark.parametrize(("source", "effort"), [(templates.PLAIN, "low"), (templates.ALWAYS_THINKING, "none")])
def test_how_hard_to_think_is_refused_where_it_changes_nothing(source: str, effort: str) -> None:
    with pytest.raises(InvalidRequestError, match="reasoning_effort is not supported") as caught:
        plan(source, effort=effort)
    assert caught.value.param == "reasoning_effort"


def test_what_is_refused_about_thinking_has_the_name_that_the_client_has_for_it() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        (templates.PLAIN, {"effort": "low", "effort_field": "how.hard"}, "how.hard"),
        (templates.ALWAYS_THINKING, {"effort": "none", "effort_field": "think"}, "think"),
        (templates.PLAIN, {"thinking_field": "think"}, "think"),
    ]
    for source, fields, param in cases:
        with pytest.raises(InvalidRequestError, match=param) as caught:
            plan(source, **fields)
        assert caught.value.param == param


@pytest.mark.parametrize("source", [templates.THINKING, templates.ALWAYS_THINKING, templates.EFFORT])
def test_a_model_that_thinks_can_be_asked_to(source: str) -> None:
    assert plan(source, thinking_field="think").prompt == plan(source).prompt


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (templates.PLAIN, "assistant\nIt is "),
        (templates.THINKING, "assistant\nIt is "),
        (templates.ALWAYS_THINKING, "<think>\n</think>\n\nIt is "),
    ],
)
def test_an_answer_that_has_begun_goes_on_without_thoughts(source: str, end: str) -> None:
    made = plan(source, prefill="It is ")
    assert made.prompt.text.endswith(end)
    assert made.format.plain


def test_calls_can_follow_the_beginning_of_an_answer() -> None:
    made = auto(templates.HERMES, prefill="Let me see.")
    assert made.prompt.text.endswith("assistant\nLet me see.")
    reply = made.format.reader().read('\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>')
    assert [call.name for call in reply.calls] == ["get_time"]


def test_variables_of_the_client_go_before_those_of_an_effort() -> None:
    made = plan(templates.THINKING, effort="none", variables={"enable_thinking": True})
    assert made.prompt.text.endswith("assistant\n")


def test_only_what_has_to_be_is_kept_in_form() -> None:
    plain = Grammar.json_object()
    assert auto(templates.HERMES).grammar is None
    assert plan(templates.HERMES, form=FORM).grammar == plain
    assert plan(templates.THINKING, form=FORM, variables={"enable_thinking": False}).grammar == plain
    for made in (
        auto(templates.HERMES, mode=ToolMode.REQUIRED),
        auto(templates.HERMES, mode=ToolMode.REQUIRED, tool="get_time"),
        auto(templates.HERMES, tools=[STRICT, TIME]),
        auto(templates.HERMES, form=FORM),
        plan(templates.THINKING, form=FORM),
    ):
        assert made.grammar is not None
        assert made.grammar.kind is GrammarKind.COMPOSITE


def test_a_named_tool_is_the_only_one_and_called_once() -> None:
    named = auto(templates.MISTRAL_ARGS, mode=ToolMode.REQUIRED, tool="get_time").grammar
    required = auto(templates.MISTRAL_ARGS, mode=ToolMode.REQUIRED).grammar
    assert named is not None
    assert required is not None
    assert "get_weather" in required.text
    assert "(open named)+" in required.text
    assert "get_weather" not in named.text
    assert "(open named)+" not in named.text


def test_a_form_cannot_be_told_from_calls_without_a_mark() -> None:
    with pytest.raises(InvalidRequestError, match="calls as JSON without a mark") as caught:
        auto(templates.LLAMA, form=FORM)
    assert caught.value.param == "response_format"
    assert auto(templates.LLAMA, form=FORM, mode=ToolMode.REQUIRED).grammar is not None


def test_a_single_call_is_waited_for_where_no_grammar_ends_the_reply() -> None:
    assert not auto(templates.HERMES).format.single
    assert not auto(templates.HERMES, parallel=False, mode=ToolMode.REQUIRED).format.single
    format = auto(templates.HERMES, parallel=False).format
    assert format.single
    one, other = format.stop_when(), format.stop_when()
    assert [one(text) for text in ('<tool_call>{"name":', ' "get_time", "arguments": {}}', "</tool_call>")] == [
        *(False, True),
        True,
    ]
    assert not other("</tool_call>")

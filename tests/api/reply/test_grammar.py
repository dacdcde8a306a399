"""Grammars of replies let the model write calls that fit, in its format, and nothing else, whatever its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from llamalane.api.reply import Tool, ToolFormat
from llamalane.api.reply.formats import TAGS
from llamalane.api.reply.grammar import CallRules, reply_grammar
from llamalane.api.reply.thinking import Thinking
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import Grammar, GrammarPart
from llamalane.streams.grammar import MAX_COMPOSITE_CHARACTERS
from llamalane.streams.llama import Model, ModelOptions
from tests.models.tiny_gguf import Kind, write_model

CITY = {"properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
STRICT = Tool("get_weather", None, CITY, True, "tools[0].function.parameters")
LOOSE = Tool("get_time", None, {"type": "object", "uniqueItems": True}, False, "tools[1].function.parameters")
FORM = GrammarPart("response_format", Grammar.json_schema(NUMBER))
TAG = TAGS["think"]
MARKS = sorted({TAG.open, TAG.close, *(mark for format in ToolFormat for mark in format.marks)})

WEATHER = {
    ToolFormat.HERMES: '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    ToolFormat.LLAMA3_JSON: '{"name": "get_weather", "parameters": {"city": "Oslo"}}',
    ToolFormat.MISTRAL: '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
    ToolFormat.MISTRAL_ARGS: '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}',
}
TWICE = {
    ToolFormat.HERMES: WEATHER[ToolFormat.HERMES] + "\n" + WEATHER[ToolFormat.HERMES],
    ToolFormat.MISTRAL: WEATHER[ToolFormat.MISTRAL][:-1] + ', {"name": "get_weather", "arguments": {"city": "Rom"}}]',
    ToolFormat.MISTRAL_ARGS: WEATHER[ToolFormat.MISTRAL_ARGS]
    + '[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": ""}',
}
THOUGHTS = {
    Thinking.NONE: "",
    Thinking.POSSIBLE: "<think>\nPerhaps {x} [TOOL_CALLS?\n</think>\n\n",
    Thinking.OPEN: "Perhaps.</think>",
}

Accepts = Callable[[Grammar | None, str], bool]
"""Whether a text is an output that a grammar allows, from its beginning to its end."""


@pytest.fixture(scope="module", params=["tokens", "text"])
def accepts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accepts]:
    """Asks a model that has the marks as control tokens, and one that has not."""
    path = tmp_path_factory.mktemp("marks") / "model.gguf"
    marks = MARKS if request.param == "tokens" else []
    write_model(path, Kind.DENSE, marks=marks)
    with Model(ModelOptions(path=path)) as model:
        assert [model.vocabulary.marked(mark) is None for mark in MARKS] == [not marks] * len(MARKS)

        def accepts(grammar: Grammar | None, text: str) -> bool:
            assert grammar is not None
            tokens = model.vocabulary.tokenize(text, add_special=False, parse_special=True)
            matcher = model.grammars.compile(grammar).matcher()
            return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

        yield accepts


def rules(
    format: ToolFormat, tools: Sequence[Tool] = (STRICT,), *, forced: bool = False, several: bool = True
) -> CallRules:
    return CallRules(format, tools, forced=forced, several=several)


@pytest.mark.parametrize("begins", Thinking)
@pytest.mark.parametrize("format", ToolFormat)
def test_a_forced_call_is_a_call_that_fits(accepts: Accepts, format: ToolFormat, begins: Thinking) -> None:
    grammar = reply_grammar(begins, TAG, rules(format, forced=True), None)
    thoughts, call = THOUGHTS[begins], WEATHER[format]
    assert accepts(grammar, thoughts + call)
    for wrong in ("", "It rains.", f"Well. {call}", f"{call} It rains.", call.replace("city", "town"), call[:-1]):
        assert not accepts(grammar, thoughts + wrong)
    assert not accepts(grammar, thoughts + call.replace("get_weather", "get_time"))


@pytest.mark.parametrize("format", ToolFormat)
def test_calls_in_the_middle_of_text_fit(accepts: Accepts, format: ToolFormat) -> None:
    grammar = reply_grammar(Thinking.NONE, None, rules(format), None)
    call = WEATHER[format]
    before = "" if format is ToolFormat.LLAMA3_JSON else "Let me see: [1, {2}] <3\n"
    for right in ("", "It rains, {not} <tool> [TOOL.", call, before + call):
        assert accepts(grammar, right), right
    for wrong in (call.replace("city", "town"), call.replace("get_weather", "get_time"), before + call[:-3]):
        assert not accepts(grammar, wrong), wrong


@pytest.mark.parametrize("format", TWICE)
def test_there_are_several_calls_only_where_they_may_be(accepts: Accepts, format: ToolFormat) -> None:
    for forced in (True, False):
        several = reply_grammar(Thinking.NONE, None, rules(format, forced=forced), None)
        single = reply_grammar(Thinking.NONE, None, rules(format, forced=forced, several=False), None)
        assert accepts(several, TWICE[format])
        assert not accepts(single, TWICE[format])
        assert accepts(single, WEATHER[format])


def test_only_strict_tools_have_to_fit_unless_a_call_is_forced(accepts: Accepts) -> None:
    both = (STRICT, LOOSE)
    loose = WEATHER[ToolFormat.HERMES].replace("get_weather", "get_time")
    assert accepts(reply_grammar(Thinking.NONE, None, rules(ToolFormat.HERMES, both), None), loose)
    with pytest.raises(InvalidRequestError, match="uniqueItems") as caught:
        accepts(reply_grammar(Thinking.NONE, None, rules(ToolFormat.HERMES, both, forced=True), None), loose)
    assert caught.value.param == "tools[1].function.parameters"


def test_a_tool_without_parameters_is_called_with_an_empty_object(accepts: Accepts) -> None:
    nothing = Tool("get_time", None, None, True, "tools[0].function.parameters")
    grammar = reply_grammar(Thinking.NONE, None, rules(ToolFormat.LLAMA3_JSON, [nothing], forced=True), None)
    assert accepts(grammar, '{"name": "get_time", "parameters": {}}')
    assert not accepts(grammar, '{"name": "get_time", "parameters": {"zone": "UTC"}}')


@pytest.mark.parametrize("begins", Thinking)
def test_a_form_follows_thoughts(accepts: Accepts, begins: Thinking) -> None:
    grammar = reply_grammar(begins, TAG, None, FORM)
    assert accepts(grammar, THOUGHTS[begins] + '{"a": 1}')
    assert not accepts(grammar, THOUGHTS[begins] + '{"b": 1}')
    assert accepts(grammar, '{"a": 1}') == (begins is not Thinking.OPEN)


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        (Grammar.regex("[0-9]{2}"), "12", "123"),
        (Grammar.choice(["left", "right"]), "left", "lef"),
        (Grammar.rules('start: "a" | "b"'), "b", "c"),
        (Grammar.rules('root ::= "a" | "b"'), "b", "c"),
    ],
)
def test_any_kind_of_form_follows_thoughts(accepts: Accepts, form: Grammar, right: str, wrong: str) -> None:
    grammar = reply_grammar(Thinking.POSSIBLE, TAG, None, GrammarPart("guided", form))
    thoughts = THOUGHTS[Thinking.POSSIBLE]
    assert accepts(grammar, thoughts + right)
    assert accepts(grammar, right)
    assert not accepts(grammar, thoughts + wrong)


@pytest.mark.parametrize("format", TWICE)
def test_a_reply_is_calls_or_has_the_form(accepts: Accepts, format: ToolFormat) -> None:
    grammar = reply_grammar(Thinking.NONE, None, rules(format), FORM)
    assert accepts(grammar, WEATHER[format])
    assert accepts(grammar, TWICE[format])
    assert accepts(grammar, '{"a": 1}')
    assert not accepts(grammar, "It rains.")


def test_a_form_that_is_wrong_is_named(accepts: Accepts) -> None:
    for form in (Grammar.regex("("), Grammar.json_schema("no json"), Grammar.rules("start: nothing")):
        with pytest.raises(InvalidRequestError, match=r"guided: the .* cannot be used") as caught:
            accepts(reply_grammar(Thinking.POSSIBLE, TAG, None, GrammarPart("guided", form)), "")
        assert caught.value.param == "guided"


def test_an_agent_s_many_tools_fit_and_endless_ones_are_refused(accepts: Accepts) -> None:
    schema = {"type": "object", "properties": {f"field_{number}": {"description": "x" * 60} for number in range(15)}}
    tools = [Tool(f"tool_{number}", None, schema, True, f"tools[{number}]") for number in range(60)]
    grammar = reply_grammar(Thinking.NONE, None, rules(ToolFormat.HERMES, tools, forced=True), None)
    assert grammar is not None
    assert len(grammar.text) > MAX_COMPOSITE_CHARACTERS / 2
    assert accepts(grammar, '<tool_call>\n{"name": "tool_59", "arguments": {}}\n</tool_call>')
    with pytest.raises(InvalidRequestError, match=f"1 to {MAX_COMPOSITE_CHARACTERS:,} characters"):
        reply_grammar(Thinking.NONE, None, rules(ToolFormat.HERMES, tools * 2, forced=True), None)

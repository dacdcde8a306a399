"""Decides how one reply is asked for, kept in form, and read."""

from __future__ import annotations

import enum
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llamalane.api.reply.formats import TAGS, ToolFormat, find_tags, find_tool_format
from llamalane.api.reply.grammar import CallRules, reply_grammar
from llamalane.api.reply.messages import messages_for, plain_message, short_id
from llamalane.api.reply.reader import ReplyReader
from llamalane.api.reply.sink import Sink
from llamalane.api.reply.thinking import Tags, Thinking, ThoughtReader, how_it_begins
from llamalane.api.reply.turns import Tool, Turn
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import ChatPrompt, Grammar, GrammarPart, ModelConfig, StopWhen

if TYPE_CHECKING:
    from llamalane.scheduler import ChatTemplate

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""How hard a model can be asked to think."""


class ToolMode(enum.Enum):
    """Whether a reply calls tools."""

    NONE = "none"
    AUTO = "auto"
    """As the model likes."""
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Question:
    """What a client asks.

    Attributes:
        tool: the one tool that has to be called.
        parallel: whether a reply can call several tools.
        form: what an answer that calls no tools has to follow, and what the client calls that.
        variables: further variables for the chat template.
        effort: how hard the model is to think, one of `EFFORTS`.
        effort_field: what the client calls that, for errors.
        thinking_field: what the client calls its demand that the model think at all; None if it makes none.
        thoughts: whether the client wants to see them.
        prefill: the beginning of the answer, which the reply goes on from. Nothing is thought before it.
    """

    turns: Sequence[Turn]
    tools: Sequence[Tool] = ()
    mode: ToolMode = ToolMode.NONE
    tool: str | None = None
    parallel: bool = True
    form: GrammarPart | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    effort: str | None = None
    effort_field: str = "reasoning_effort"
    thinking_field: str | None = None
    thoughts: bool = True
    prefill: str = ""


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How replies to one prompt are to be read; each of its choices needs a reader of its own."""

    tags: Tags | None
    begins: Thinking
    tool_format: ToolFormat | None
    names: frozenset[str]
    single: bool
    thoughts: bool

    @property
    def plain(self) -> bool:
        """Whether a reply is nothing but content."""
        return self.tool_format is None and self.begins is Thinking.NONE

    @property
    def marks(self) -> tuple[str, ...]:
        """The control tokens that have to be seen in a reply's text."""
        tags = () if self.tags is None or self.begins is Thinking.NONE else (self.tags.open, self.tags.close)
        return (*tags, *(self.tool_format.marks if self.tool_format is not None else ()))

    def reader(self) -> ReplyReader:
        """Return what reads one reply."""
        calls = None
        if self.tool_format is not None:
            sink = Sink(self._new_id, single=self.single)
            calls = self.tool_format.reader(sink, self.names)
        return ReplyReader(self._thought_reader(), calls, show_thoughts=self.thoughts)

    def thoughts_in(self, text: str) -> int:
        """Return how many characters of a whole output are thoughts, with the tags around them and the space after."""
        reader = self._thought_reader()
        if reader is None:
            return 0
        return len(text) - len(reader.feed(text)[1]) - len(reader.end()[1])

    def stop_when(self) -> StopWhen:
        """Return what tells when one reply has its only call."""
        reader = self.reader()

        def ends(text: str) -> bool:
            reader.feed(text)
            return reader.done

        return ends

    def _thought_reader(self) -> ThoughtReader | None:
        if self.tags is None or self.begins is Thinking.NONE:
            return None
        return ThoughtReader(self.tags, self.begins)

    def _new_id(self) -> str:
        name = f"call_{secrets.token_hex(12)}"
        return short_id(name) if self.tool_format in (ToolFormat.MISTRAL, ToolFormat.MISTRAL_ARGS) else name


@dataclass(frozen=True, slots=True)
class Plan:
    """How one reply is asked for: the prompt, the grammar that it has to follow, and how to read it."""

    prompt: ChatPrompt
    grammar: Grammar | None
    format: ReplyFormat


def plan_reply(template: ChatTemplate, model: ModelConfig, question: Question) -> Plan:
    """Return how to ask `question`.

    Raises `ChatTemplateError` when the template refuses it, and `InvalidRequestError` for what is not possible with
    the model.
    """
    tags = _tags(template, model)
    tools = () if question.mode is ToolMode.NONE else question.tools
    format, native = _tool_format(template, model, question) if tools or _tells_of_tools(question) else (None, False)
    variables = {**_thinking_variables(template, tags, question), **question.variables}
    if tools and native:
        variables["tools"] = [tool.definition() for tool in tools]
    if format is None:
        messages = [plain_message(turn) for turn in question.turns]
    else:
        messages = messages_for(question.turns, tools, template.abilities, format if native else None)
    prompt = template.render(messages, **variables)
    begins = Thinking.NONE if tags is None else how_it_begins(prompt, tags)
    if question.prefill:
        prompt = _begun(prompt, tags if begins is Thinking.OPEN else None, question.prefill)
        begins = Thinking.NONE
    calls = _call_rules(format, tools, question) if tools and format is not None else None
    return Plan(
        ChatPrompt(prompt),
        reply_grammar(begins, tags, calls, question.form),
        ReplyFormat(
            tags=tags,
            begins=begins,
            tool_format=None if calls is None else format,
            names=frozenset(tool.name for tool in tools),
            single=calls is not None and not calls.forced and not question.parallel,
            thoughts=question.thoughts,
        ),
    )


def _tells_of_tools(question: Question) -> bool:
    return any(turn.calls or turn.answers is not None for turn in question.turns)


def _tags(template: ChatTemplate, model: ModelConfig) -> Tags | None:
    if model.reasoning_format == "auto":
        return find_tags(template.source)
    return TAGS.get(model.reasoning_format)


def _tool_format(template: ChatTemplate, model: ModelConfig, question: Question) -> tuple[ToolFormat, bool]:
    """Return the format of calls, and whether the template itself describes tools in it."""
    if model.tool_format == "none":
        raise InvalidRequestError(
            "this server does not offer tools: its setting tool_format is none",
            param="tools" if question.tools else "messages",
        )
    abilities = template.abilities
    if model.tool_format == "auto":
        found = find_tool_format(abilities)
    else:
        able = abilities.tools and abilities.call and abilities.results
        found = ToolFormat(model.tool_format) if able else None
    return (ToolFormat.HERMES, False) if found is None else (found, True)


def _call_rules(format: ToolFormat, tools: Sequence[Tool], question: Question) -> CallRules:
    named = [tool for tool in tools if tool.name == question.tool]
    return CallRules(
        format=format,
        tools=named or tools,
        forced=question.mode is ToolMode.REQUIRED,
        several=question.parallel and format.several and not named,
    )


def _begun(prompt: str, opened: Tags | None, prefill: str) -> str:
    """Return a prompt with the beginning of the answer; thoughts that it has `opened` are closed before that."""
    closing = "" if opened is None else f"{opened.close}\n\n"
    return f"{prompt}{closing}{prefill}"


def _thinking_variables(template: ChatTemplate, tags: Tags | None, question: Question) -> dict[str, Any]:
    """Return the variables by which a template is told how hard the model is to think."""
    known = [name for name in ("reasoning_effort", "enable_thinking") if name in template.source]
    effort, field, demand = question.effort, question.effort_field, question.thinking_field
    if demand is not None and tags is None and not known:
        raise InvalidRequestError(
            f"{demand} is not possible: the model's chat template knows nothing of thoughts", param=demand
        )
    if effort is None:
        return {}
    if not known and not (effort == "none" and tags is None):
        why = "the model thinks in any case, and its" if effort == "none" else "the model's"
        raise InvalidRequestError(
            f"{field} is not supported: {why} chat template knows neither reasoning_effort nor enable_thinking",
            param=field,
        )
    values = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return {name: values[name] for name in known}

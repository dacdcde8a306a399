"""Grammars of replies that have to call tools, or whose calls have to fit the tools' schemas.

The rules are Lark's, with the marks and parts of `Grammar.composite`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from llamalane.api.reply import hermes, llama, mistral
from llamalane.api.reply.formats import ToolFormat
from llamalane.api.reply.thinking import Tags, Thinking
from llamalane.api.reply.turns import Tool
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import Grammar, GrammarPart

_ANY_OBJECT = Grammar.json_object()


@dataclass(frozen=True, slots=True)
class CallRules:
    """What a grammar has to know of calls.

    Attributes:
        tools: those that can be called.
        forced: whether there has to be a call, and nothing else.
        several: whether there can be more than one.
    """

    format: ToolFormat
    tools: Sequence[Tool]
    forced: bool
    several: bool


@dataclass(slots=True)
class _Draft:
    """The rules so far, and what they refer to."""

    rules: list[str] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=dict)
    parts: dict[str, GrammarPart] = field(default_factory=dict)

    def grammar(self) -> Grammar:
        return Grammar.composite("\n".join(self.rules), marks=self.marks, parts=self.parts)


def reply_grammar(
    begins: Thinking, tags: Tags | None, calls: CallRules | None, form: GrammarPart | None
) -> Grammar | None:
    """Return what a whole reply has to follow, None if it may be anything.

    `form` is what an answer without calls has to follow. Thoughts, if there can be any, come first and are free.
    Raises `InvalidRequestError` for a form that cannot be told from calls.
    """
    if calls is None:
        if form is None or begins is Thinking.NONE:
            return None if form is None else form.grammar
    elif form is None and not calls.forced and not any(tool.strict for tool in calls.tools):
        return None
    draft = _Draft()
    thoughts = _add_thoughts(draft, begins, tags)
    if form is not None and (calls is None or not calls.forced):
        draft.parts["form"] = form
    draft.rules.append(f"start: {thoughts} {_add_answer(draft, calls)}")
    return draft.grammar()


def _add_thoughts(draft: _Draft, begins: Thinking, tags: Tags | None) -> str:
    """Add thoughts; returns what refers to them."""
    if tags is None or begins is Thinking.NONE:
        return ""
    draft.marks |= {"open_thoughts": tags.open, "close_thoughts": tags.close}
    draft.rules.append(r"LINES: /\n{1,2}/")
    thoughts = "to_close_thoughts LINES?"
    return thoughts if begins is Thinking.OPEN else f"(open_thoughts {thoughts})?"


def _add_answer(draft: _Draft, calls: CallRules | None) -> str:
    """Add what follows the thoughts; returns what refers to it."""
    if calls is None:
        return "@form"
    match calls.format:
        case ToolFormat.HERMES:
            _add_hermes(draft, calls)
        case ToolFormat.LLAMA3_JSON:
            _add_llama(draft, calls)
        case ToolFormat.MISTRAL:
            _add_mistral_list(draft, calls)
        case ToolFormat.MISTRAL_ARGS:
            _add_mistral_args(draft, calls)
    if calls.forced:
        return "calls"
    return "(calls | @form)" if "form" in draft.parts else "free"


def _add_hermes(draft: _Draft, calls: CallRules) -> None:
    draft.marks |= {"open": hermes.OPEN, "close": hermes.CLOSE}
    draft.rules += [
        r'calls: open tagged ("\n" open tagged)*' if calls.several else "calls: open tagged",
        "free: (to_open tagged)* TEXT" if calls.several else "free: to_open tagged | TEXT",
        rf'tagged: "\n" ({_add_objects(draft, calls, "arguments")}) "\n" close',
    ]


def _add_llama(draft: _Draft, calls: CallRules) -> None:
    form = draft.parts.get("form")
    if form is not None:
        raise InvalidRequestError(
            f"{form.label} is not possible beside tools that may or may not be called: this model writes calls as JSON "
            'without a mark; set tool_choice to "none" or "required"',
            param=form.label,
        )
    draft.marks["tag"] = llama.TAG
    draft.rules += [
        f"calls: {_add_objects(draft, calls, 'parameters')}",
        "free: PLAIN | tag? calls",
        r"PLAIN: /(\s*[^{\s](.|\n)*)?/",
    ]


def _add_mistral_list(draft: _Draft, calls: CallRules) -> None:
    draft.marks["open"] = mistral.CALLS
    more = '(", " object)*' if calls.several else ""
    draft.rules += [
        "calls: open list",
        "free: to_open list | TEXT",
        f'list: " "? "[" object {more} "]"',
        f"object: {_add_objects(draft, calls, 'arguments')}",
    ]


def _add_mistral_args(draft: _Draft, calls: CallRules) -> None:
    draft.marks |= {"open": mistral.CALLS, "call_id": mistral.CALL_ID, "arguments": mistral.ARGUMENTS}
    bodies = [
        f"{json.dumps(tool.name)} id? arguments @{_add_arguments(draft, calls, number)}"
        for number, tool in enumerate(calls.tools)
    ]
    draft.rules += [
        "calls: (open named)+" if calls.several else "calls: open named",
        "free: (to_open named)* TEXT" if calls.several else "free: to_open named | TEXT",
        f"named: {' | '.join(bodies)}",
        "id: call_id /[A-Za-z0-9]{9}/",
    ]


def _add_objects(draft: _Draft, calls: CallRules, key: str) -> str:
    """Add the tools' schemas; returns the calls that can be, each an object."""
    return " | ".join(
        f'{json.dumps(_beginning(tool, key))} @{_add_arguments(draft, calls, number)} "}}"'
        for number, tool in enumerate(calls.tools)
    )


def _beginning(tool: Tool, key: str) -> str:
    return f'{{"name": {json.dumps(tool.name)}, "{key}": '


def _add_arguments(draft: _Draft, calls: CallRules, number: int) -> str:
    """Add what a tool's arguments have to fit: its schema where that is asked for, else any object."""
    tool = calls.tools[number]
    name = f"arguments_{number}"
    grammar = Grammar.json_schema(tool.schema()) if calls.forced or tool.strict else _ANY_OBJECT
    draft.parts[name] = GrammarPart(tool.field, grammar)
    return name

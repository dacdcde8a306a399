"""Tools in plain text, in Hermes' format, for a model whose template does not know them, or has a way of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from llamalane.api.reply.events import Call
from llamalane.api.reply.hermes import CLOSE, OPEN
from llamalane.api.reply.turns import Tool, Turn, arguments_of

_EXAMPLE = '{"name": "the name of the function", "arguments": {"the name of an argument": "its value"}}'


def describe(tools: Sequence[Tool]) -> str:
    """Return what a model is told of the tools and of how to call them."""
    definitions = [json.dumps(tool.definition(), ensure_ascii=False) for tool in tools]
    lines = [
        "You can call functions. Between <tools> and </tools>, each line describes one of them:",
        *("<tools>", *definitions, "</tools>", ""),
        f"To call one, write its name and its arguments as JSON between {OPEN} and {CLOSE}:",
        *(OPEN, _EXAMPLE, CLOSE),
        "What it returns comes between <tool_response> and </tool_response>.",
    ]
    return "\n".join(lines)


def with_tools(turns: Sequence[Turn], tools: Sequence[Tool]) -> list[Turn]:
    """Return the turns with the tools described by the system, after what it says first."""
    text = describe(tools)
    if turns and turns[0].role == "system":
        return [replace(turns[0], text=f"{turns[0].text}\n\n{text}"), *turns[1:]]
    return [Turn("system", text), *turns]


def in_plain_text(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with calls within the text, and with what tools answer said by the user.

    Several answers in a row make one turn, with what the user says after them: many templates want user and assistant
    to take turns.
    """
    plain: list[Turn] = []
    answered = False
    for turn in turns:
        text = _answer(turn) if turn.role == "tool" else _with_calls(turn)
        if answered and turn.role in ("tool", "user"):
            plain[-1] = replace(plain[-1], text=f"{plain[-1].text}\n{text}")
        elif turn.role == "tool":
            plain.append(Turn("user", text))
        else:
            plain.append(replace(turn, text=text, calls=()))
        answered = turn.role == "tool"
    return plain


def _with_calls(turn: Turn) -> str:
    return "\n".join([*([turn.text] if turn.text or not turn.calls else []), *map(_call, turn.calls)])


def _call(call: Call) -> str:
    content = json.dumps({"name": call.name, "arguments": arguments_of(call)}, ensure_ascii=False)
    return f"{OPEN}\n{content}\n{CLOSE}"


def _answer(turn: Turn) -> str:
    return f"<tool_response>\n{turn.text}\n</tool_response>"

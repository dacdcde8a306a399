"""A conversation as a chat template wants it, which differs from one to the other."""

from __future__ import annotations

import hashlib
import re
import string
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llamalane.api.reply.events import Call
from llamalane.api.reply.formats import ToolFormat
from llamalane.api.reply.plain_tools import in_plain_text, with_tools
from llamalane.api.reply.turns import Tool, Turn, arguments_of, name_answers

if TYPE_CHECKING:
    from llamalane.scheduler import TemplateAbilities

_SHORT_ID = re.compile("[A-Za-z0-9]{9}")
"""What Mistral's templates take for the id of a call."""
_ID_LETTERS = string.ascii_letters + string.digits


def messages_for(
    turns: Sequence[Turn], tools: Sequence[Tool], abilities: TemplateAbilities, format: ToolFormat | None
) -> list[dict[str, Any]]:
    """Return the messages for a template that has tools in `format`; with None, tools are described in the text."""
    if format is None:
        messages = [plain_message(turn) for turn in in_plain_text(with_tools(turns, tools) if tools else turns)]
        return messages if abilities.system else _fold_system(messages)
    turns = name_answers(turns)
    if not abilities.several_calls:
        turns = _one_call_each(turns)
    rename = short_id if format in (ToolFormat.MISTRAL, ToolFormat.MISTRAL_ARGS) else str
    return [_message(turn, abilities, rename) for turn in turns]


def plain_message(turn: Turn) -> dict[str, Any]:
    """Return a turn as templates know it that have no tools."""
    message = {"role": turn.role, "content": turn.text}
    given = {"name": turn.name, "reasoning_content": turn.reasoning}
    message.update({field: value for field, value in given.items() if value is not None})
    return message


def short_id(name: str) -> str:
    """Return the id of a call as Mistral's templates take it; the same for the same id."""
    if _SHORT_ID.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode()).digest()
    return "".join(_ID_LETTERS[byte % len(_ID_LETTERS)] for byte in digest[:9])


def _message(turn: Turn, abilities: TemplateAbilities, rename: Callable[[str], str]) -> dict[str, Any]:
    message = plain_message(turn)
    if turn.calls:
        message["tool_calls"] = [_call(call, abilities, rename) for call in turn.calls]
        if abilities.null_content and not turn.text:
            message["content"] = None
    if turn.answers is not None:
        message["tool_call_id"] = rename(turn.answers)
    return message


def _call(call: Call, abilities: TemplateAbilities, rename: Callable[[str], str]) -> dict[str, Any]:
    arguments = call.arguments if abilities.arguments_as_text else arguments_of(call)
    return {"id": rename(call.id), "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _one_call_each(turns: Sequence[Turn]) -> list[Turn]:
    """Part turns with several calls, each call followed by its answer, for a template that takes no more at once."""
    answers: dict[str, deque[int]] = {}
    for index, turn in enumerate(turns):
        if turn.answers is not None:
            answers.setdefault(turn.answers, deque()).append(index)
    parted: list[Turn] = []
    moved: set[int] = set()
    for index, turn in enumerate(turns):
        if len(turn.calls) > 1:
            for number, call in enumerate(turn.calls):
                words = turn if number == 0 else replace(turn, text="", reasoning=None)
                parted.append(replace(words, calls=(call,)))
                later = answers.get(call.id, deque())
                while later and later[0] < index:  # the id has been used before, for another call
                    later.popleft()
                if later:
                    moved.add(later[0])
                    parted.append(turns[later.popleft()])
        elif index not in moved:
            parted.append(turn)
    return parted


def _fold_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put what the system says before what the user says first, for a template that does not know the system."""
    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    others = [dict(message) for message in messages if message["role"] != "system"]
    first = next((message for message in others if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": system}, *others]
    first["content"] = f"{system}\n\n{first['content']}"
    return others

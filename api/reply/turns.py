"""A conversation and the tools in it, as endpoints hand them over."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llamalane.api.reply.events import Call


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        text: what is said; of a tool, what it answered.
        name: who says it, or the tool that answers.
        reasoning: what an assistant thought before.
        calls: the tools that an assistant calls.
        answers: the id of the call that a tool answers.
    """

    role: str
    text: str
    name: str | None = None
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    answers: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Attributes:
        parameters: the JSON schema of its arguments; None if it has none.
        strict: whether a call's arguments are kept to the schema.
        field: what the client calls the schema, for errors.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    strict: bool
    field: str

    def definition(self) -> dict[str, Any]:
        """Return the tool as chat templates know it, which is as OpenAI's API has it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.schema()
        return {"type": "function", "function": function}

    def schema(self) -> dict[str, Any]:
        """Return the schema of its arguments, which are an object in any case."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.parameters}


def arguments_of(call: Call) -> dict[str, Any] | str:
    """Return a call's arguments as an object, or their text where a model made a mistake in it."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments
    return arguments if isinstance(arguments, dict) else call.arguments


def name_answers(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with the tool's name in each of a tool's answers, if the call that it answers is there."""
    names = {call.id: call.name for turn in turns for call in turn.calls}
    return [
        replace(turn, name=names.get(turn.answers)) if turn.answers is not None and turn.name is None else turn
        for turn in turns
    ]

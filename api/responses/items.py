"""The input of a response: a text, or the items of a conversation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llamalane.api.bodies import explain
from llamalane.api.reply import Call, Turn
from llamalane.errors import InvalidRequestError

MAX_ITEMS = 10_000

# What items of an answer have when they come back, and what is not looked at; the client's own readings among it.
_IGNORED = frozenset({"id", "status", "phase", "annotations", "logprobs", "parsed", "parsed_arguments"})
# Parts that are text, and where they have it.
_TEXTS: Mapping[str, str] = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_THOUGHTS: Mapping[str, str] = {"reasoning_text": "text", "summary_text": "text"}


class _Item(BaseModel):
    """An item of the input."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str | None = None

    @abstractmethod
    def turn(self, where: str) -> Turn:
        """Return the item as a turn of the conversation; raises `InvalidRequestError` for what it cannot have."""


class MessageItem(_Item):
    """What somebody says."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Any

    def turn(self, where: str) -> Turn:
        """Return the item as a turn of the conversation: a developer is what templates call the system."""
        role = "system" if self.role == "developer" else self.role
        return Turn(role, _text_of(self.content, f"{where}.content", _TEXTS))


class FunctionCallItem(_Item):
    """A call of a function, as it stood in an answer."""

    call_id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    arguments: str

    def turn(self, where: str) -> Turn:
        """Return the item as a turn of the conversation."""
        return Turn("assistant", "", calls=(Call(self.call_id, self.name, self.arguments),))


class FunctionCallOutputItem(_Item):
    """What a call of a function came to."""

    call_id: Annotated[str, Field(min_length=1)]
    output: Any

    def turn(self, where: str) -> Turn:
        """Return the item as a turn of the conversation."""
        return Turn("tool", _text_of(self.output, f"{where}.output", _TEXTS), answers=self.call_id)


class ReasoningItem(_Item):
    """What the model thought, as it stood in an answer; a summary counts where there is nothing else."""

    content: Any = None
    summary: Any = None
    encrypted_content: str | None = None

    def turn(self, where: str) -> Turn:
        """Return the item as a turn of the conversation."""
        given = ((name, getattr(self, name)) for name in ("content", "summary"))
        texts = [_text_of(value, f"{where}.{name}", _THOUGHTS) for name, value in given if value]
        if not texts and self.encrypted_content:
            param = f"{where}.encrypted_content"
            raise InvalidRequestError(
                f"{param} cannot be read by this server: send the thoughts as content", param=param
            )
        return Turn("assistant", "", reasoning=texts[0] if texts else "")


KINDS: Mapping[str, type[_Item]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}
"""The types of items that there are."""


def read_input(value: Any) -> list[Turn]:
    """Return the turns of a conversation that `value`, a body's `input`, holds.

    Thoughts, what is said after them, and calls after that are one turn of an assistant. Raises `InvalidRequestError`.
    """
    if isinstance(value, str):
        return [Turn("user", value)]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ITEMS:
        raise InvalidRequestError(f"input must be a string, or a list of 1 to {MAX_ITEMS} items", param="input")
    turns: list[Turn] = []
    calls: set[str] = set()
    for index, item in enumerate(value):
        where = f"input[{index}]"
        turn = _read_item(item, where)
        if turn.reasoning == "":
            continue
        if turn.answers is not None and turn.answers not in calls:
            raise InvalidRequestError(
                f"{where}.call_id names no function_call before it: {turn.answers!r:.200}", param=f"{where}.call_id"
            )
        calls.update(call.id for call in turn.calls)
        if turns and _goes_on(turns[-1], turn):
            turns[-1] = _together(turns[-1], turn)
        else:
            turns.append(turn)
    if not turns:
        raise InvalidRequestError("input says nothing: all its items are thoughts that are empty", param="input")
    return turns


def _read_item(value: Any, where: str) -> Turn:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{where} must be an object", param=where)
    kind = value.get("type")
    if kind is None and "role" in value:
        kind = "message"
    if kind == "item_reference":
        raise InvalidRequestError(
            f"{where} refers to an item that is not here: this server stores none; send the item itself", param=where
        )
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidRequestError(
            f"{where} is of the type {kind!r:.100}, which is not supported; there are {', '.join(KINDS)}",
            param=f"{where}.type",
        )
    try:
        item = KINDS[kind].model_validate(value)
    except ValidationError as error:
        raise explain(error, where) from None
    _check_names(item.model_extra or {}, (), where)
    return item.turn(where)


def _text_of(value: Any, where: str, parts: Mapping[str, str]) -> str:
    """Return a text that is given as it is, or in parts of the types in `parts`."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequestError(f"{where} must be a string or a list of text parts", param=where)
    return "\n".join(_part(part, f"{where}[{index}]", parts) for index, part in enumerate(value))


def _part(part: Any, where: str, parts: Mapping[str, str]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in parts:
        raise InvalidRequestError(
            f"{where} is of the type {kind!r:.100}, which is not supported; there are {', '.join(parts)}", param=where
        )
    text = part.get(parts[kind])
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.{parts[kind]} must be a string", param=f"{where}.{parts[kind]}")
    _check_names(part, {"type", parts[kind]}, where)
    return text


def _check_names(fields: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Raise `InvalidRequestError` for fields that are not known, unless they are null."""
    for name, value in fields.items():
        if value is not None and name not in known and name not in _IGNORED:
            param = f"{where}.{name}"[:200]
            raise InvalidRequestError(f"{param} is not supported", param=param)


def _goes_on(last: Turn, turn: Turn) -> bool:
    """Whether `turn` goes on with what the assistant did in `last`: thoughts, words and calls follow in this order."""
    if last.role != "assistant" or turn.role != "assistant":
        return False
    if turn.calls:
        return True
    return last.reasoning is not None and not last.text and not last.calls


def _together(last: Turn, turn: Turn) -> Turn:
    thoughts = [turn.reasoning for turn in (last, turn) if turn.reasoning]
    reasoning = "\n".join(thoughts) if thoughts else None
    return replace(last, text=last.text or turn.text, reasoning=reasoning, calls=last.calls + turn.calls)

"""The messages of a conversation in content blocks, as turns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from llamalane.api.reply import Call, Turn
from llamalane.errors import InvalidRequestError

MAX_MESSAGES = 10_000

_DESCRIBED: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"enum": ["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]},
        "text": {"type": "string"},
    },
    "required": ["type"],
}
"""A content block, as the description of the API has it."""


def _blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class Block(BaseModel):
    """A content block: `text`, `tool_use`, `tool_result`, `thinking` or `redacted_thinking`.

    `cache_control` is taken and not looked at: what prompts begin with is kept in any case.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str
    text: str | None = None
    id: Annotated[str, Field(min_length=1)] | None = None
    name: Annotated[str, Field(min_length=1)] | None = None
    input: dict[str, Any] | None = None
    partial_json: str | None = None
    tool_use_id: Annotated[str, Field(min_length=1)] | None = None
    content: Content | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    cache_control: Any = None

    def check(self, where: str, role: str) -> None:
        """Raise `InvalidRequestError` unless the block, which stands at `where`, can be in a message of `role`."""
        kind = _KINDS.get(self.type)
        if kind is None:
            raise InvalidRequestError(
                f"{where} is of the type {self.type!r:.100}, which is not supported: there are {', '.join(_KINDS)}",
                param=where,
            )
        if role not in kind.roles:
            raise InvalidRequestError(
                f"{where} is of the type {self.type}, which is for {' and '.join(sorted(kind.roles))} only", param=where
            )
        for name in kind.needs:
            if getattr(self, name) is None:
                raise InvalidRequestError(f"{where}.{name} is missing", param=f"{where}.{name}")
        self._check_fields(where, kind)
        check_content(self.content or (), f"{where}.content", _RESULT)

    def _check_fields(self, where: str, kind: _Kind) -> None:
        for name in self.model_fields_set - {"type", "cache_control", *kind.needs, *kind.may_have}:
            param = f"{where}.{name}"[:200]
            value = getattr(self, name)
            if name not in kind.harmless:
                if value is None and name in type(self).model_fields:
                    continue
                raise InvalidRequestError(f"unrecognized field {param!r}", param=param)
            if value is not None and value not in kind.harmless[name]:
                raise InvalidRequestError(f"{param} is not supported", param=param)


Content = Annotated[
    list[Block],
    BeforeValidator(_blocks),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _DESCRIBED}]}),
]
"""A text, or content blocks."""

_RESULT = "tool_result"
"""Stands for the role where the blocks are what a tool answered."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type of blocks: whose they are, what they need and may have, and the values that change nothing."""

    roles: frozenset[str]
    needs: tuple[str, ...]
    may_have: tuple[str, ...] = ()
    harmless: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


_ASSISTANT = frozenset({"assistant"})
_KINDS: Mapping[str, _Kind] = {
    "text": _Kind(frozenset({"system", "user", "assistant", _RESULT}), ("text",), harmless={"citations": ([],)}),
    "tool_use": _Kind(
        _ASSISTANT,
        ("id", "name", "input"),
        ("partial_json",),
        harmless={"caller": ({"type": "direct"},), "toolset_name": ()},
    ),
    "tool_result": _Kind(frozenset({"user"}), ("tool_use_id",), ("content", "is_error"), harmless={"toolset_name": ()}),
    "thinking": _Kind(_ASSISTANT, ("thinking",), ("signature",)),
    "redacted_thinking": _Kind(_ASSISTANT, ("data",)),
}


class BlocksMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    role: Literal["user", "assistant", "system"]
    content: Content

    def turns(self) -> Iterator[Turn]:
        """Yield the turns that the message stands for: what tools answer are turns of their own."""
        if self.role == "assistant":
            yield _assistant(self.content)
            return
        for kind, blocks in groupby(self.content, lambda block: block.type):
            if kind == "text":
                yield Turn(self.role, text_of(blocks))
            else:
                yield from map(_result, blocks)


def check_content(blocks: Iterable[Block], where: str, role: str) -> None:
    """Raise `InvalidRequestError` unless `blocks`, which stand at `where`, can be in a message of `role`."""
    for index, block in enumerate(blocks):
        block.check(f"{where}[{index}]", role)


def check_messages(messages: Sequence[BlocksMessage]) -> None:
    """Raise `InvalidRequestError` for messages that are empty, and blocks that are not supported where they are.

    The last message can be empty if it is an assistant's.
    """
    for index, message in enumerate(messages):
        where = f"messages[{index}].content"
        if not message.content and not (message.role == "assistant" and index == len(messages) - 1):
            raise InvalidRequestError(f"{where} must not be empty", param=where)
        check_content(message.content, where, message.role)


def read_turns(system: Sequence[Block], messages: Iterable[BlocksMessage]) -> list[Turn]:
    """Return a conversation as turns; messages of one role in a row are one turn."""
    spoken = text_of(system)
    turns = [Turn("system", spoken)] if spoken else []
    for turn in (turn for message in messages for turn in message.turns()):
        if turn.role in ("user", "assistant") and turns and turns[-1].role == turn.role:
            turns[-1] = _joined(turns[-1], turn)
        else:
            turns.append(turn)
    return turns


def text_of(blocks: Iterable[Block]) -> str:
    """Return what the text blocks say."""
    return "\n".join(block.text for block in blocks if block.text is not None)


def _assistant(blocks: Sequence[Block]) -> Turn:
    thoughts = [block.thinking for block in blocks if block.thinking is not None]
    return Turn(
        role="assistant",
        text=text_of(blocks),
        reasoning="\n".join(thoughts) if thoughts else None,
        calls=tuple(_call(block) for block in blocks if block.type == "tool_use"),
    )


def _call(block: Block) -> Call:
    assert block.id is not None
    assert block.name is not None
    written = block.partial_json  # what an answer of ours told beside an input that was not whole
    return Call(block.id, block.name, json.dumps(block.input, ensure_ascii=False) if written is None else written)


def _result(block: Block) -> Turn:
    """Return what a tool answered. Chat templates know no errors: that it is one stands in the text."""
    text = text_of(block.content or ())
    if block.is_error:
        text = f"Error: {text}" if text else "Error"
    return Turn("tool", text, answers=block.tool_use_id)


def _joined(first: Turn, second: Turn) -> Turn:
    thoughts = [turn.reasoning for turn in (first, second) if turn.reasoning is not None]
    return replace(
        first,
        text="\n".join(turn.text for turn in (first, second) if turn.text),
        reasoning="\n".join(thoughts) if thoughts else None,
        calls=first.calls + second.calls,
    )

"""The messages of a chat, as OpenAI's API has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from llamalane.api.field_schemas import CONTENT, close
from llamalane.api.reply import Call, Turn
from llamalane.errors import InvalidRequestError

# What clients send back of an answer's message; more than "nothing" in them is not supported.
_EMPTY = frozenset({"annotations", "audio", "function_call", "refusal"})
# Fields that only messages of one role have.
_ROLE_OF = {
    "tool_calls": "assistant",
    "reasoning_content": "assistant",
    "reasoning": "assistant",
    "tool_call_id": "tool",
}


def _content(value: Any) -> str | None:
    """Return the text of a message's content, given as it is or as a list of text parts."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("content", "it must be a string or a list of text parts")
    return "\n".join(_part(part, index) for index, part in enumerate(value))


def _part(part: Any, index: int) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        raise PydanticCustomError(
            "part",
            "part {index} is of the type {kind}; only text parts are supported",
            {"index": index, "kind": repr(kind)[:100]},
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise PydanticCustomError("part", "part {index} has no string as its text", {"index": index})
    return text


class MessageFunction(BaseModel):
    """The function that was called; its arguments are JSON, as far as the model got that right.

    `parsed_arguments` is what OpenAI's client made of them, and not looked at.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    arguments: str
    parsed_arguments: Any = None


class MessageCall(BaseModel):
    """A call of a tool, as it stood in an answer."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: MessageFunction
    index: int | None = None


class Message(BaseModel):
    """One message of a chat; `parsed` is what OpenAI's client made of its content, and not looked at."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, json_schema_extra=close)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, PlainValidator(_content), CONTENT] = None
    name: str | None = None
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    parsed: Any = None

    def turn(self) -> Turn:
        """Return the message as a turn of a conversation: a developer is what templates call the system."""
        return Turn(
            role="system" if self.role == "developer" else self.role,
            text=self.content or "",
            name=self.name,
            reasoning=self.reasoning_content if self.reasoning_content is not None else self.reasoning,
            calls=tuple(Call(call.id, call.function.name, call.function.arguments) for call in self.tool_calls or ()),
            answers=self.tool_call_id,
        )

    def check(self, where: str) -> None:
        """Raise `InvalidRequestError` for fields that are missing, or not supported."""
        for name, value in (self.model_extra or {}).items():
            param = f"{where}.{name}"[:200]
            if name not in _EMPTY:
                raise InvalidRequestError(f"unrecognized field {param!r}", param=param)
            if value is not None and value != []:
                raise InvalidRequestError(f"{param} is not supported", param=param)
        for name, role in _ROLE_OF.items():
            if getattr(self, name) and self.role != role:
                param = f"{where}.{name}"
                raise InvalidRequestError(f"{param} is only allowed in messages of the role {role}", param=param)
        if self.role == "tool" and not self.tool_call_id:
            param = f"{where}.tool_call_id"
            raise InvalidRequestError(f"{param} is missing: which call does the tool answer?", param=param)
        if self.content is None and not (self.tool_calls or self.reasoning_content or self.reasoning):
            param = f"{where}.content"
            raise InvalidRequestError(
                f"{param} is missing: only an assistant's message with tool_calls or reasoning_content can do without",
                param=param,
            )

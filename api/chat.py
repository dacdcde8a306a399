"""`/v1/chat/completions`: messages, through the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from llamalane.api.answer_schemas import ChatCompletion, ChatCompletionChunk
from llamalane.api.choices import Endpoint, PromptInput
from llamalane.api.logprobs import Echo, chat_logprobs
from llamalane.api.schemas import GenerationBody, at_most
from llamalane.errors import InvalidRequestError
from llamalane.ids import RequestId
from llamalane.scheduler import Engine, FinishReason, RequestHandle, Result, SubmitOptions, TextPiece

MAX_TOP_LOGPROBS = 20
# What clients send back of an answer's message; more than "nothing" in them is not supported.
_EMPTY_IN_MESSAGES = frozenset(
    {"annotations", "audio", "function_call", "reasoning_content", "refusal", "tool_call_id", "tool_calls"}
)


def _content(value: Any) -> str:
    """Return the text of a message's content, given as it is or as a list of text parts."""
    if isinstance(value, str):
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


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(_content)]
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        """Return the message as chat templates know it: a developer is what they call the system."""
        message = {"role": "system" if self.role == "developer" else self.role, "content": self.content}
        return message if self.name is None else {**message, "name": self.name}

    def check(self, where: str) -> None:
        """Raise `InvalidRequestError` for fields that are not supported."""
        for name, value in (self.model_extra or {}).items():
            param = f"{where}.{name}"[:200]
            if name not in _EMPTY_IN_MESSAGES:
                raise InvalidRequestError(f"unrecognized field {param!r}", param=param)
            if value is not None and value != []:
                raise InvalidRequestError(f"{param} is not supported", param=param)


class ChatBody(GenerationBody):
    """The body of `/v1/chat/completions`."""

    logprobs: bool | None = None
    top_logprobs: Annotated[int, at_most(MAX_TOP_LOGPROBS)] | None = None
    messages: Annotated[
        list[Message],
        Field(min_length=1, max_length=10_000),
        WithJsonSchema(
            {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
                    "required": ["role", "content"],
                },
            }
        ),
    ]

    @property
    def alternatives(self) -> int | None:
        """Beside how many others each token is told with its log probability, None if it is not."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown, not supported, or out of range."""
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs is only allowed when logprobs is true", param="top_logprobs")
        for index, message in enumerate(self.messages):
            message.check(f"messages[{index}]")

    def client_name(self, param: str | None) -> str | None:
        """Return what the client called the engine's parameter `param`."""
        return "messages" if param == "prompt" else super().client_name(param)


class Chat(Endpoint[ChatBody]):
    """Answers messages."""

    path = "/v1/chat/completions"
    body_type = ChatBody
    answer = ChatCompletion
    chunk = ChatCompletionChunk
    operation = "chat"
    id_prefix = "chatcmpl"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def prompts(self, engine: Engine, body: ChatBody) -> Sequence[PromptInput]:
        """Return the one prompt that the messages make."""
        messages: list[Mapping[str, Any]] = [message.for_template() for message in body.messages]

        async def submit(ids: Sequence[RequestId], options: SubmitOptions) -> list[RequestHandle]:
            return await engine.submit_chat_choices(messages, ids, **options)

        return [PromptInput(submit)]

    def choice(self, index: int, result: Result, echo: Echo | None = None) -> dict[str, Any]:
        """Return a finished choice."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": result.text, "refusal": None},
            "logprobs": None if result.logprobs is None else chat_logprobs(result.logprobs),
            "finish_reason": result.finish_reason.value,
        }

    def first_chunk(self, index: int, echo: Echo | None = None) -> dict[str, Any]:
        """Return the choice of the chunk that names the role."""
        return _delta(index, {"role": "assistant", "content": ""})

    def text_chunk(self, index: int) -> tuple[str, str]:
        """Return what stands before and after the text of a chunk."""
        return f'{{"index":{index},"delta":{{"content":', '},"logprobs":null,"finish_reason":null}'

    def scored_chunk(self, index: int, piece: TextPiece, echo: Echo | None = None) -> dict[str, Any]:
        """Return the choice of a chunk that brings log probabilities with its text."""
        return {**_delta(index, {"content": piece.text}), "logprobs": chat_logprobs(piece.tokens)}

    def last_chunk(self, index: int, finish: FinishReason) -> dict[str, Any]:
        """Return the choice of the chunk that tells why the text ended."""
        return _delta(index, {}, finish.value)


def _delta(index: int, delta: Mapping[str, str], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}

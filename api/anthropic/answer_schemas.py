"""What answers look like in Anthropic's API, for its description. Nothing is checked or made by these classes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel

from llamalane.api.answer_schemas import Timings


class MessageErrorDetail(BaseModel):
    """What went wrong, in Anthropic's words; `param` and `code` are as on the other paths."""

    type: str = Field(examples=["invalid_request_error"])
    message: str
    param: str | None = Field(description="The field at fault, where one is.")
    code: str | None = Field(examples=["context_length_exceeded"])
    details: dict[str, Any] | None = Field(
        default=None, description="Only of `thread_unsupported_request`: by it clients go on without `thread`."
    )


class MessageErrorAnswer(BaseModel):
    """An error. A stream that has begun sends it as its last event."""

    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str | None = Field(default=None, description="What the answer's header says, if it is no event.")


class TextBlock(BaseModel):
    """A part of the answer's text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(BaseModel):
    """What the model thought; nobody signs it, so `signature` is empty."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(BaseModel):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    partial_json: str | None = Field(
        default=None,
        description="What the model wrote, if that is not the JSON of an object: `input` is what can be read.",
    )


ContentBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class MessageUsage(BaseModel):
    """Token counts. The prompt has the sum of the first three."""

    input_tokens: int = Field(description="Tokens of the prompt that had to be computed.")
    cache_read_input_tokens: int = Field(description="Tokens of the prompt that were there from earlier requests.")
    cache_creation_input_tokens: int = Field(description="Always 0: what is computed is kept without asking.")
    output_tokens: int
    service_tier: str | None = Field(default=None, description="Only when the request named one.")


class StartedMessage(BaseModel):
    """A message as a stream begins it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: str | None = Field(
        description="end_turn, max_tokens, model_context_window_exceeded, stop_sequence or tool_use."
    )
    stop_sequence: str | None = Field(description="The stop sequence that was met, if one was.")
    usage: MessageUsage
    priority: int = Field(description="The level it was served at: 1 (most urgent) to 5.")


class AnsweredMessage(StartedMessage):
    """The answer to a conversation."""

    seed: int = Field(description="Sent back, it gives the same answer again.")
    timings: Timings


class TextBlockDelta(BaseModel):
    """More of a text."""

    type: Literal["text_delta"]
    text: str


class ThinkingBlockDelta(BaseModel):
    """More of what the model thinks."""

    type: Literal["thinking_delta"]
    thinking: str


class ToolInputDelta(BaseModel):
    """More of a call's input, as JSON."""

    type: Literal["input_json_delta"]
    partial_json: str


class MessageEnding(BaseModel):
    """Why a message ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageStart(BaseModel):
    """The first event: a message without content."""

    type: Literal["message_start"]
    message: StartedMessage


class BlockStart(BaseModel):
    """A content block begins."""

    type: Literal["content_block_start"]
    index: int
    content_block: ContentBlock


class BlockDelta(BaseModel):
    """More of a content block."""

    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[TextBlockDelta | ThinkingBlockDelta | ToolInputDelta, Field(discriminator="type")]


class BlockStop(BaseModel):
    """A content block ends."""

    type: Literal["content_block_stop"]
    index: int


class MessageDelta(BaseModel):
    """What is known of a message at its end."""

    type: Literal["message_delta"]
    delta: MessageEnding
    usage: MessageUsage
    priority: int = Field(description="The level that it had at last.")
    seed: int
    timings: Timings


class MessageStop(BaseModel):
    """The last event."""

    type: Literal["message_stop"]


class MessageEvent(
    RootModel[MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | MessageErrorAnswer]
):
    """One event of a stream; its name is its type, and that of an error `error`."""


class PromptTokenCount(BaseModel):
    """How many tokens a conversation has."""

    input_tokens: int

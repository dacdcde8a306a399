"""What responses and their events look like, for the description of the API. Nothing is checked or made by these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, RootModel

from llamalane.api.answer_schemas import Timings


class ResponseToken(BaseModel):
    """A token and the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int] = Field(description="What it stands for in UTF-8; empty for a control token.")


class ResponseChosenToken(ResponseToken):
    """A token of an answer, and the likeliest ones in its place."""

    top_logprobs: list[ResponseToken]


class OutputText(BaseModel):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] = Field(description="Empty.")
    logprobs: list[ResponseChosenToken] = Field(description="Empty unless `include` asks for them.")


class ReasoningText(BaseModel):
    """What the model thought, as it is."""

    type: Literal["reasoning_text"]
    text: str


class OutputItem(BaseModel):
    """What all items of an output have."""

    id: str
    status: str = Field(description="in_progress, completed or incomplete.")


class OutputMessage(OutputItem):
    """What the model says."""

    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]


class OutputReasoning(OutputItem):
    """What the model thought before it answered."""

    type: Literal["reasoning"]
    summary: list[Any] = Field(description="Empty: thoughts are not summarised.")
    content: list[ReasoningText]


class OutputFunctionCall(OutputItem):
    """A call of a function; its arguments are JSON, as far as the model got that right."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


AnyOutputItem = OutputMessage | OutputReasoning | OutputFunctionCall


class InputTokensDetails(BaseModel):
    """How many tokens of the input need not be computed. Nothing is charged for writing to the cache."""

    cached_tokens: int
    cache_write_tokens: int = Field(description="0.")


class OutputTokensDetails(BaseModel):
    """How many tokens of the output are thoughts."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(BaseModel):
    """Why a response failed after it had begun."""

    code: str = Field(description="server_error, rate_limit_exceeded or invalid_prompt.")
    message: str
    type: str = Field(description="As in `ErrorDetail`.")
    param: str | None


class IncompleteDetails(BaseModel):
    """Why a response is incomplete."""

    reason: str = Field(description="max_output_tokens, also where there is no room left in the context.")


class ResponseText(BaseModel):
    """The form that was asked for."""

    format: dict[str, Any]
    verbosity: str | None


class ResponseReasoning(BaseModel):
    """The effort that was asked for."""

    effort: str | None
    summary: str | None


class ResponseTool(BaseModel):
    """A function that the model may call."""

    type: str
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class ResponseAnswer(BaseModel):
    """A response: what was asked for, and what came of it."""

    id: str
    object: str
    created_at: int = Field(description="Seconds since 1970.")
    completed_at: int | None
    status: str = Field(description="completed or incomplete; in a stream, also in_progress or failed.")
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[AnyOutputItem]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    text: ResponseText
    reasoning: ResponseReasoning
    tools: list[ResponseTool]
    tool_choice: Any
    parallel_tool_calls: bool
    truncation: str
    background: bool
    store: bool = Field(description="false: this server stores none.")
    previous_response_id: None
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    service_tier: str | None = Field(description="null unless the request named one.")
    priority: int = Field(description="The level it was served at: 1 (most urgent) to 5.")
    seed: int | None = Field(default=None, description="Sent back, it gives the same output again.")
    timings: Timings | None = None


class Numbered(BaseModel):
    """What all events have: a number, from 0."""

    sequence_number: int


class ResponseChanged(Numbered):
    """The response has begun, or ended."""

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: ResponseAnswer


class ItemChanged(Numbered):
    """An item of the output begins, or is done."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: AnyOutputItem


class WithinItem(Numbered):
    """What happens within an item."""

    item_id: str
    output_index: int


class WithinPart(WithinItem):
    """What happens within a part of an item."""

    content_index: int


class PartChanged(WithinPart):
    """A part of an item begins, or is done."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText | ReasoningText


class TextDelta(WithinPart):
    """A piece of a message's text."""

    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[ResponseChosenToken]


class TextDone(WithinPart):
    """The whole text of a message."""

    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[ResponseChosenToken]


class ReasoningDelta(WithinPart):
    """A piece of the thoughts."""

    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningDone(WithinPart):
    """The whole thoughts."""

    type: Literal["response.reasoning_text.done"]
    text: str


class ArgumentsDelta(WithinItem):
    """A piece of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(WithinItem):
    """The whole arguments of a call."""

    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


AnyEvent = (
    ResponseChanged
    | ItemChanged
    | PartChanged
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)


class ResponseEvent(RootModel[AnyEvent]):
    """One event of a stream, whose name is its `type`. The last one tells how the response ended."""


class InputTokens(BaseModel):
    """How many tokens an input is."""

    object: Literal["response.input_tokens"]
    input_tokens: int

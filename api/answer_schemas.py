"""What answers look like, for the description of the API. Nothing is checked or made by these classes."""

from __future__ import annotations

from pydantic import BaseModel, Field


class ErrorDetail(BaseModel):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = Field(description="The field at fault, where one is.")
    code: str | None = Field(examples=["context_length_exceeded"])


class ErrorAnswer(BaseModel):
    """An error. A stream that has begun sends it as its last event."""

    error: ErrorDetail


class CachedTokens(BaseModel):
    """How many of a prompt's tokens need not be computed."""

    cached_tokens: int


class Usage(BaseModel):
    """Token counts; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Timings(BaseModel):
    """When the first choice got a place, the first token came, and the last choice ended, in milliseconds."""

    wait_ms: float
    first_token_ms: float
    total_ms: float
    parks: int = Field(description="How often its choices had to give way.")
    handovers: int = Field(description="How often they left the lane that had computed their prompt for another one.")


class Envelope(BaseModel):
    """What every answer, and every chunk of a stream, begins with."""

    id: str
    object: str
    created: int = Field(description="Seconds since 1970.")
    model: str
    priority: int = Field(description="The level it was served at: 1 (most urgent) to 5.")
    service_tier: str | None = Field(default=None, description="Only when the request named one.")


class Summary(BaseModel):
    """What an answer ends with; in a stream, its last chunk."""

    usage: Usage
    seed: int = Field(description="Sent back, it gives the same choices again.")
    timings: Timings


class CompletionLogprobs(BaseModel):
    """How likely the tokens of a continuation were: one entry of each list for each of them."""

    tokens: list[str]
    token_logprobs: list[float | None] = Field(description="null for the first token of an echoed prompt.")
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int] = Field(description="Where each begins in the text, in characters.")


class TextChoice(BaseModel):
    """One continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = Field(description="stop or length; null in a stream while it goes on.")


class Completion(Envelope, Summary):
    """Continuations of one or several prompts."""

    choices: list[TextChoice]


class CalledFunction(BaseModel):
    """The function that is called; its arguments are JSON, as far as the model got that right."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call of a tool."""

    id: str
    type: str = "function"
    function: CalledFunction


class AssistantMessage(BaseModel):
    """The answer's message."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning_content: str | None = Field(default=None, description="What the model thought before it answered.")
    tool_calls: list[ToolCall] | None = None


class LikelyToken(BaseModel):
    """A token and the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int] | None = Field(description="What it stands for in UTF-8; null for a control token.")


class ChosenToken(LikelyToken):
    """A token of an answer, and the likeliest ones in its place."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(BaseModel):
    """How likely the tokens of an answer were."""

    content: list[ChosenToken]
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str = Field(description="stop, length or tool_calls.")


class ChatCompletion(Envelope, Summary):
    """Answers to messages."""

    choices: list[ChatChoice]


class FunctionDelta(BaseModel):
    """A call's name, which comes first, with empty arguments; or a piece of its arguments."""

    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """What a chunk adds to a call of a tool; `id` and `type` come with its name."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta


class Delta(BaseModel):
    """What a chunk adds to the answer's message."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(BaseModel):
    """What a chunk adds to one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None


class Chunk(Envelope):
    """One event of a stream. The last one has the usage, if it was asked for, and `[DONE]` follows."""

    usage: Usage | None = None
    seed: int | None = None
    timings: Timings | None = None


class CompletionChunk(Chunk):
    """One event of a stream of continuations."""

    choices: list[TextChoice]


class ChatCompletionChunk(Chunk):
    """One event of a stream of answers."""

    choices: list[ChatChunkChoice]


class ModelMeta(BaseModel):
    """The model's sizes: its vocabulary, the tokens it was trained to attend to, its weights, and their bytes."""

    n_vocab: int
    n_ctx_train: int
    n_params: int
    size: int


class Model(BaseModel):
    """A model that is served."""

    id: str
    object: str = "model"
    created: int
    owned_by: str
    aliases: list[str]
    task: str = Field(description="What it is for: generate, embed or rerank.")
    max_model_len: int = Field(description="The most tokens of one sequence, prompt and output together.")
    dimensions: int | None = Field(default=None, description="How many numbers its vectors have.")
    meta: ModelMeta


class ModelList(BaseModel):
    """The models that are served."""

    object: str = "list"
    data: list[Model]


class QueueEvent(BaseModel):
    """Something that happened to a request, so many seconds after its submission."""

    name: str
    after: float


class QueueEntry(BaseModel):
    """A request that waits or runs."""

    id: str
    object: str = "queue.entry"
    state: str
    priority: int
    effective_priority: float
    position: int | None = Field(description="How many waiting requests go before it.")
    reason: str = Field(description="Why it is not further.")
    estimated_start: float | None = Field(description="In so many seconds it is likely to start.")
    lane: str | None
    prompt_tokens: int
    generated_tokens: int
    events: list[QueueEvent]


class QueueList(BaseModel):
    """The requests that wait, in the order of their turns, and those that run."""

    object: str = "list"
    data: list[QueueEntry]


class Health(BaseModel):
    """That requests can be served, and which lanes take none or get no further, if there are such."""

    status: str = "ok"
    lanes_down: list[str] | None = None
    lanes_paused: list[str] | None = None
    lanes_stalled: list[str] | None = None


class Drained(BaseModel):
    """That the server has drained."""

    object: str = "drain"
    state: str


class LaneSwitched(BaseModel):
    """Whether a lane is paused now, and how many requests run on it."""

    object: str = "lane"
    name: str
    paused: bool
    running: int


class RequestsCancelled(BaseModel):
    """Which requests were ended."""

    object: str = "requests"
    cancelled: list[str]


class RequestsChanged(BaseModel):
    """Which requests have another priority now."""

    object: str = "requests"
    priority: int
    changed: list[str]

"""`/v1/chat/completions`: messages, through the model's own chat template."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from llamalane.api.answer_schemas import ChatCompletion, ChatCompletionChunk
from llamalane.api.choices import ChoicesEndpoint
from llamalane.api.logprobs import Echo, chat_logprobs
from llamalane.api.messages import Message
from llamalane.api.orders import PromptInput
from llamalane.api.questions import check_effort, check_variables, question_input
from llamalane.api.reply import EFFORTS, Question, Reply, ReplyFormat
from llamalane.api.reply_chunks import finish_of, message_of
from llamalane.api.sampling_fields import Within
from llamalane.api.schemas import GenerationBody
from llamalane.api.tool_fields import MAX_TOOLS, ToolField, read_choice, read_tools
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import Engine, GrammarPart, Result, TextPiece

MAX_TOP_LOGPROBS = 20


class ChatBody(GenerationBody):
    """The body of `/v1/chat/completions`.

    Beside OpenAI's fields there are vLLM's `chat_template_kwargs`, further variables for the chat template, and
    `include_reasoning`, whether the answer tells what the model thought.
    """

    logprobs: bool | None = None
    top_logprobs: Annotated[int, Within(0, MAX_TOP_LOGPROBS)] | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    tools: Annotated[list[ToolField] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Annotated[str | None, WithJsonSchema({"enum": [*EFFORTS, None]})] = None
    include_reasoning: bool | None = None

    @functools.cached_property
    def question(self) -> Question:
        """What is asked; raises `InvalidRequestError` for what cannot be."""
        tools = read_tools(self.tools or ())
        mode, tool = read_choice(self.tool_choice, tools)
        grammar = self._grammar
        return Question(
            turns=[message.turn() for message in self.messages],
            tools=tools,
            mode=mode,
            tool=tool,
            parallel=self.parallel_tool_calls is not False,
            form=None if grammar is None else GrammarPart(*grammar),
            variables=self.chat_template_kwargs or {},
            effort=self.reasoning_effort,
            thoughts=self.include_reasoning is not False,
        )

    @property
    def alternatives(self) -> int | None:
        """Beside how many others each token is told with its log probability, None if it is not."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown, not supported, or do not go together."""
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs is only allowed when logprobs is true", param="top_logprobs")
        for index, message in enumerate(self.messages):
            message.check(f"messages[{index}]")
        check_variables(self.chat_template_kwargs or {}, "chat_template_kwargs")
        check_effort(self.reasoning_effort, "reasoning_effort")
        _ = self.question

    def client_name(self, param: str | None) -> str | None:
        """Return what the client called the engine's parameter `param`."""
        if param == "prompt":
            return "messages"
        name = super().client_name(param)
        return "tools" if name == "grammar" and self.tools else name


class Chat(ChoicesEndpoint[ChatBody]):
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
        """Return the one prompt that the messages make, and how its answers are to be read."""
        return [question_input(engine, body.question)]

    def choice(self, index: int, result: Result, echo: Echo | None = None) -> dict[str, Any]:
        """Return a finished choice."""
        return _choice(index, Reply(result.text), result)

    def read_choice(self, index: int, result: Result, format: ReplyFormat) -> dict[str, Any]:
        """Return a finished choice that is to be read in `format`."""
        return _choice(index, format.reader().read(result.text), result)

    def first_chunk(self, index: int, echo: Echo | None = None) -> dict[str, Any]:
        """Return the choice of the chunk that names the role."""
        return _delta(index, {"role": "assistant", "content": ""})

    def text_chunk(self, index: int) -> tuple[str, str]:
        """Return what stands before and after the text of a chunk."""
        return f'{{"index":{index},"delta":{{"content":', '},"logprobs":null,"finish_reason":null}'

    def scored_chunk(self, index: int, piece: TextPiece, echo: Echo | None = None) -> dict[str, Any]:
        """Return the choice of a chunk that brings log probabilities with its text."""
        return {**_delta(index, {"content": piece.text}), "logprobs": chat_logprobs(piece.tokens)}

    def last_chunk(self, index: int, finish: str) -> dict[str, Any]:
        """Return the choice of the chunk that tells why the text ended."""
        return _delta(index, {}, finish)


def _choice(index: int, reply: Reply, result: Result) -> dict[str, Any]:
    return {
        "index": index,
        "message": message_of(reply),
        "logprobs": None if result.logprobs is None else chat_logprobs(result.logprobs),
        "finish_reason": finish_of(result.finish_reason, called=bool(reply.calls)),
    }


def _delta(index: int, delta: Mapping[str, str], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}

"""The body of `/v1/responses`, with OpenAI's fields."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from llamalane.api.field_schemas import between
from llamalane.api.metadata import Metadata
from llamalane.api.questions import check_effort, check_variables
from llamalane.api.reply import EFFORTS, Question, Turn
from llamalane.api.responses.items import MAX_ITEMS, read_input
from llamalane.api.sampling_fields import SampledBody, Within
from llamalane.api.schemas import MAX_USER_LENGTH
from llamalane.api.structured import read_text_format
from llamalane.api.tool_fields import MAX_TOOLS, FunctionField, read_choice, read_functions
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import MAX_OUTPUT_TOKENS, Grammar, GrammarPart

MAX_TOP_LOGPROBS = 20
LOGPROBS = "message.output_text.logprobs"
# Thoughts are told as they are, and can be sent back so: what this is for, there is without it.
_INCLUDABLE = (LOGPROBS, "reasoning.encrypted_content")

_COUNT = {"minItems": 1, "maxItems": MAX_ITEMS}

_WHOLE_CONVERSATION = "this server stores no responses: send the whole conversation as input"
# What cannot be had of a server that stores nothing, with what to do instead.
_STORED: Mapping[str, str] = {
    "previous_response_id": _WHOLE_CONVERSATION,
    "conversation": _WHOLE_CONVERSATION,
    "prompt": "this server stores no prompts: send its text as instructions and input",
}
_UNSUPPORTED = frozenset(
    {
        *("access_programs", "background_options", "context_management", "image", "moderation", "personality"),
        *("prompt_cache_options", "stop", "logit_bias", "n", "logprobs"),
    }
)
# Fields of chats, and what they are called here.
_CHAT_FIELDS: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
_CLIENT_NAMES: Mapping[str, str] = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "top_logprobs",
}


class _Part(BaseModel):
    """A part of the body; fields of it that are not known may be null."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    def check(self, where: str) -> None:
        """Raise `InvalidRequestError` for fields that are not supported."""
        for name, value in (self.model_extra or {}).items():
            if value is not None:
                param = f"{where}.{name}"[:200]
                raise InvalidRequestError(f"{param} is not supported", param=param)


class TextOptions(_Part):
    """What form the answer's text has: `format` is of the type `text`, `json_object` or `json_schema`."""

    format: Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "null"}]})] = None
    verbosity: Annotated[str | None, WithJsonSchema({"enum": ["medium", None]})] = None

    def check(self, where: str) -> None:
        """Raise `InvalidRequestError` for what is not supported."""
        super().check(where)
        if self.verbosity not in (None, "medium"):
            param = f"{where}.verbosity"
            raise InvalidRequestError(f'{param} is not supported, except as "medium"', param=param)

    def grammar(self) -> Grammar | None:
        """Return the grammar that the format asks for; raises `InvalidRequestError`."""
        return None if self.format is None else read_text_format(self.format, "text.format")


class ReasoningOptions(_Part):
    """How hard the model is to think. Its thoughts are told as they are, and never summarised."""

    effort: Annotated[str | None, WithJsonSchema({"enum": [*EFFORTS, None]})] = None
    summary: Annotated[str | None, WithJsonSchema({"enum": ["auto", None]})] = None

    def check(self, where: str) -> None:
        """Raise `InvalidRequestError` for what is not supported."""
        super().check(where)
        check_effort(self.effort, f"{where}.effort")
        if self.summary not in (None, "auto"):
            param = f"{where}.summary"
            raise InvalidRequestError(
                f'{param} is not supported, except as "auto": thoughts are told as they are, and never summarised',
                param=param,
            )


class ResponseStreamOptions(BaseModel):
    """What a stream tells beside the text. There is no obfuscation in it, whether or not it is asked for."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    include_obfuscation: bool | None = None


class FunctionTool(FunctionField):
    """A function that the model may call. It is strict unless it says that it is not, as OpenAI has it here."""

    type: Literal["function"]


def _is_function(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else "function"
    if kind != "function":
        raise PydanticCustomError(
            "tool",
            "a tool of the type {kind} is not supported: only functions are, which the client runs",
            {"kind": repr(kind)[:100]},
        )
    return value


class ResponsesBody(SampledBody):
    """The body of `/v1/responses`.

    Beside OpenAI's fields there are vLLM's `chat_template_kwargs`, further variables for the chat template, and
    `include_reasoning`, whether the answer tells what the model thought.
    """

    input: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, **_COUNT}]}),
    ]
    instructions: str | None = None
    max_output_tokens: Annotated[int | None, between(1, MAX_OUTPUT_TOKENS)] = None
    max_tool_calls: int | None = None
    text: TextOptions | None = None
    tools: Annotated[
        list[Annotated[FunctionTool, BeforeValidator(_is_function)]] | None, Field(max_length=MAX_TOOLS)
    ] = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Annotated[str, WithJsonSchema({"enum": _INCLUDABLE})]] | None = None
    top_logprobs: Annotated[int, Within(0, MAX_TOP_LOGPROBS)] | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Annotated[str | None, WithJsonSchema({"enum": ["disabled", None]})] = None
    stream_options: ResponseStreamOptions | None = None
    user: Annotated[str, Field(max_length=MAX_USER_LENGTH)] | None = None
    safety_identifier: Annotated[str, Field(max_length=MAX_USER_LENGTH)] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None

    @functools.cached_property
    def question(self) -> Question:
        """What is asked; raises `InvalidRequestError` for what cannot be."""
        tools = read_functions(self.tools or (), "tools[{}]", strict=True)
        mode, tool = read_choice(self.tool_choice, tools, flat=True)
        instructions = [Turn("system", self.instructions)] if self.instructions else []
        form = None if self.text is None else self.text.grammar()
        return Question(
            turns=[*instructions, *read_input(self.input)],
            tools=tools,
            mode=mode,
            tool=tool,
            parallel=self.parallel_tool_calls is not False,
            form=None if form is None else GrammarPart("text.format", form),
            variables=self.chat_template_kwargs or {},
            effort=None if self.reasoning is None else self.reasoning.effort,
            thoughts=self.include_reasoning is not False,
        )

    @property
    def end_user(self) -> str | None:
        """Whom the client names as the one for whom it asks."""
        return self.user

    @property
    def alternatives(self) -> int | None:
        """Beside how many others each token is told with its log probability, None if it is not."""
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

    @property
    def most_tokens(self) -> int | None:
        """How many tokens may be generated, None for as many as there is room for."""
        return self.max_output_tokens

    @property
    def grammar(self) -> Grammar | None:
        """The form of the output."""
        return None if self.text is None else self.text.grammar()

    def check(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown, not supported, or do not go together."""
        _check_extra_fields(self.model_extra or {})
        self._check_server_s_part()
        if self.text is not None:
            self.text.check("text")
        if self.reasoning is not None:
            self.reasoning.check("reasoning")
        check_variables(self.chat_template_kwargs or (), "chat_template_kwargs")
        _check_included(self.include or ())
        if self.top_logprobs and self.alternatives is None:
            raise InvalidRequestError(
                f'top_logprobs is only allowed when include has "{LOGPROBS}"', param="top_logprobs"
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options is only allowed when stream is true", param="stream_options")
        super().check()
        _ = self.question

    def client_name(self, param: str | None) -> str | None:
        """Return what the client called the engine's parameter `param`."""
        if param == "grammar":
            return "tools" if self.tools else "text.format"
        return None if param is None else _CLIENT_NAMES.get(param, param)

    def _check_server_s_part(self) -> None:
        """Raise `InvalidRequestError` if more is asked of the server than an answer."""
        if self.background:
            raise InvalidRequestError(
                "background is not supported: this server stores no responses; keep the connection open, or hand in "
                "a batch",
                param="background",
            )
        if self.truncation not in (None, "disabled"):
            raise InvalidRequestError(
                'truncation is not supported, except as "disabled": leave out what there is no room for',
                param="truncation",
            )


def _check_extra_fields(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        param = name[:200]
        if value is None and (name in _STORED or name in _UNSUPPORTED):
            continue
        if name in _STORED:
            raise InvalidRequestError(f"{name} is not supported: {_STORED[name]}", param=param)
        if name in _CHAT_FIELDS:
            raise InvalidRequestError(f"unrecognized field {name!r}: here it is {_CHAT_FIELDS[name]}", param=param)
        if name in _UNSUPPORTED:
            raise InvalidRequestError(f"{name} is not supported", param=param)
        raise InvalidRequestError(f"unrecognized field {param!r}", param=param)


def _check_included(names: Collection[str]) -> None:
    for index, name in enumerate(names):
        if name not in _INCLUDABLE:
            raise InvalidRequestError(
                f"include may have {' and '.join(_INCLUDABLE)}; {name[:100]!r} is not supported",
                param=f"include[{index}]",
            )

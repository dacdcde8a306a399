"""Request bodies with OpenAI's fields."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from llamalane.api.field_schemas import between, strings, texts_or_tokens, token_biases
from llamalane.api.sampling_fields import SampledBody, Within
from llamalane.api.structured import READERS, read_grammar
from llamalane.errors import InvalidRequestError
from llamalane.scheduler import MAX_OUTPUT_TOKENS, MAX_STOP_LENGTH, MAX_STOP_STRINGS, Grammar

MAX_CHOICES = 128
MAX_BIASES = 50_000
MAX_USER_LENGTH = 512
MAX_COMPLETION_LOGPROBS = 5

# Fields that change the output in ways that are not supported, each with the values that change nothing; null
# never does.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "suffix": (),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}
# Fields that change nothing about the output.
_HARMLESS = frozenset(
    {
        *("metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention"),
        *("safety_identifier", "store"),
    }
)
_TOKEN = re.compile("0|[1-9][0-9]{0,8}")

Prompt = str | list[int]


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


MAX_PROMPTS = 2048
"""So many prompts may one body hold: whoever has more sends a batch."""


def read_prompts(value: Any) -> list[Prompt] | None:
    """Return the prompts that `value` means, None if it means none; a list of integers is one prompt, in tokens."""
    prompts = [value] if isinstance(value, str) or (isinstance(value, list) and _all(int, value)) else value
    if isinstance(prompts, list) and (_all(str, prompts) or all(map(_is_tokens, prompts))):
        return prompts
    return None


def _prompts(value: Any) -> list[Prompt]:
    if isinstance(value, list) and len(value) > MAX_PROMPTS and not _is_tokens(value):
        raise PydanticCustomError("prompts", "at most {most} prompts are taken at once", {"most": MAX_PROMPTS})
    prompts = read_prompts(value)
    if prompts is not None:
        if not all(prompts):
            raise PydanticCustomError("empty", "a prompt needs at least one character, or one token")
        return prompts
    raise PydanticCustomError(
        "prompt",
        "it must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
    )


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and _all(int, value)


def _all(kind: type, values: list[Any]) -> bool:
    return set(map(type, values)) <= {kind}  # a bool is no int here; and quick, for millions of tokens


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(SampledBody):
    """What OpenAI's two older endpoints take, `/v1/completions` and `/v1/chat/completions`."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream_options: Annotated[StreamOptions | None, WithJsonSchema(StreamOptions.model_json_schema())] = None
    max_tokens: Annotated[int | None, between(1, MAX_OUTPUT_TOKENS)] = None
    max_completion_tokens: Annotated[int | None, between(1, MAX_OUTPUT_TOKENS)] = None
    stop: Annotated[list[str] | None, BeforeValidator(_stops), strings(MAX_STOP_STRINGS, MAX_STOP_LENGTH)] = None
    logit_bias: Annotated[dict[str, float] | None, Field(max_length=MAX_BIASES), token_biases(MAX_BIASES)] = None
    response_format: Annotated[Any, WithJsonSchema({"type": "object"})] = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Annotated[Any, WithJsonSchema({"type": "object"})] = None
    user: Annotated[str, Field(max_length=MAX_USER_LENGTH)] | None = None

    @property
    def end_user(self) -> str | None:
        """Whom the client names as the one for whom it asks."""
        return self.user

    @property
    def returned(self) -> int:
        """How many choices are wanted for each prompt; of more, those that are likeliest for their length."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def most_tokens(self) -> int | None:
        """How many tokens may be generated, None for as many as there is room for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts before which the output ends."""
        return tuple(self.stop or ())

    @property
    def biases(self) -> Mapping[int, float]:
        """What is added to the logits of tokens."""
        return _token_biases(self.logit_bias or {})

    @property
    def grammar(self) -> Grammar | None:
        """The form of the output."""
        return None if self._grammar is None else self._grammar[1]

    def check(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown, not supported, or out of range."""
        check_extra_fields(self.model_extra or {})
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options is only allowed when stream is true", param="stream_options")
        if (
            self.max_tokens is not None
            and self.max_completion_tokens is not None
            and self.max_tokens != self.max_completion_tokens
        ):
            raise InvalidRequestError(
                "max_tokens and max_completion_tokens mean the same; set one of them", param="max_tokens"
            )
        super().check()

    @functools.cached_property
    def _grammar(self) -> tuple[str, Grammar] | None:
        """The form of the output, and the name of the field that asks for it."""
        return read_grammar({name: getattr(self, name) for name in READERS})

    def client_name(self, param: str | None) -> str | None:
        """Return what the client called the engine's parameter `param`."""
        if param == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        if param == "grammar" and self._grammar is not None:
            return self._grammar[0]
        return param


class CompletionBody(GenerationBody):
    """The body of `/v1/completions`.

    `best_of` choices are generated for each prompt, and `n` of them returned. With `echo`, `max_tokens` may be 0: then
    only the prompt is told, with its log probabilities if they are asked for.
    """

    max_tokens: Annotated[int | None, between(0, MAX_OUTPUT_TOKENS)] = None
    best_of: Annotated[int, Within(1, MAX_CHOICES)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Within(0, MAX_COMPLETION_LOGPROBS)] | None = None
    prompt: Annotated[
        list[Prompt],
        PlainValidator(_prompts),
        texts_or_tokens(MAX_PROMPTS),
    ]

    @property
    def choices(self) -> int:
        """How many choices are generated for each prompt."""
        return self.best_of or self.returned

    @property
    def alternatives(self) -> int | None:
        """Beside how many others each token is told with its log probability, None if it is not."""
        return self.logprobs

    @property
    def echoes(self) -> bool:
        """Whether a choice begins with its prompt."""
        return bool(self.echo)

    @property
    def prompt_only(self) -> bool:
        """Whether nothing is wanted beside the prompt and what is told of it."""
        return self.echoes and self.max_tokens == 0

    @property
    def most_tokens(self) -> int | None:
        """How many tokens may be generated: one at least, which is not told if only the prompt is wanted."""
        return 1 if self.prompt_only else super().most_tokens

    def check(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown, not supported, or out of range."""
        if self.max_tokens == 0 and not self.echoes:
            raise InvalidRequestError("max_tokens may be 0 only when echo is true", param="max_tokens")
        super().check()
        if self.choices < self.returned:
            raise InvalidRequestError(
                f"best_of must be at least n, which is {self.returned}; got {self.best_of}", param="best_of"
            )
        if self.stream and self.returned < self.choices:
            raise InvalidRequestError(
                "best_of cannot be streamed: which choices are the best shows at their end", param="best_of"
            )

    def client_name(self, param: str | None) -> str | None:
        """Return what the client called the engine's parameter `param`."""
        return "best_of" if param == "n" and self.best_of is not None else super().client_name(param)


def check_extra_fields(
    fields: Mapping[str, Any],
    where: str = "",
    *,
    unsupported: Mapping[str, tuple[object, ...]] = _UNSUPPORTED,
    harmless: Collection[str] = _HARMLESS,
) -> None:
    """Raise `InvalidRequestError` for the first of `fields` that is unknown, or asks for what is not supported.

    `unsupported` has the values of such fields that change nothing; what is `harmless` may have any.
    """
    for name, value in fields.items():
        param = f"{where}{name}"[:200]
        if name in harmless:
            continue
        if name not in unsupported:
            raise InvalidRequestError(f"unrecognized field {param!r}", param=param)
        same = (type(value) is type(other) and value == other for other in unsupported[name])
        if value is not None and not any(same):
            raise InvalidRequestError(f"{param} is not supported{_but(unsupported[name])}", param=param)


def _but(harmless: tuple[object, ...]) -> str:
    return f", except as {' or '.join(map(json.dumps, harmless))}" if harmless else ""


def _token_biases(biases: Mapping[str, float]) -> dict[int, float]:
    for token in biases:
        if not _TOKEN.fullmatch(token):
            raise InvalidRequestError(f"logit_bias keys must be token ids; got {token[:100]!r}", param="logit_bias")
    return {int(token): bias for token, bias in biases.items()}

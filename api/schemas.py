"""Request bodies: OpenAI's fields, llama.cpp's sampling fields, and our own."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function

from llamalane.api.structured import READERS, read_grammar
from llamalane.errors import InvalidRequestError, RequestError
from llamalane.scheduler import Grammar, SamplingParameters

MAX_CHOICES = 128
MAX_BIASES = 50_000
MAX_SUPERSEDE_LENGTH = 128
MAX_USER_LENGTH = 512
MAX_COMPLETION_LOGPROBS = 5
SMALLEST_DIVISOR = 1e-30
"""Logits are 32-bit floats: divided by much less, they are no longer finite."""

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
_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty"),
    *("frequency_penalty", "seed", "ignore_eos"),
)

Prompt = str | list[int]


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


MAX_PROMPTS = 2048
"""So many prompts may one body hold: whoever has more sends a batch."""


def _prompts(value: Any) -> list[Prompt]:
    """Return the prompts that `value` means; a list of integers is one prompt, in tokens."""
    prompts = [value] if isinstance(value, str) or (isinstance(value, list) and _all(int, value)) else value
    if isinstance(prompts, list) and len(prompts) > MAX_PROMPTS:
        raise PydanticCustomError("prompts", "at most {most} prompts are taken at once", {"most": MAX_PROMPTS})
    if isinstance(prompts, list) and (_all(str, prompts) or all(map(_is_tokens, prompts))):
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


def _divisor(value: float) -> float:
    if 0 < value < SMALLEST_DIVISOR:
        raise PydanticCustomError("divisor", "the least value above 0 is {least}", {"least": SMALLEST_DIVISOR})
    return value


Divisor = Annotated[float, AfterValidator(_divisor)]


@dataclass(frozen=True, slots=True)
class Within:
    """Annotates a whole number that is from `least` to `most`; another one is refused with both."""

    least: int
    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "minimum": self.least, "maximum": self.most}

    def _check(self, value: int) -> int:
        if not self.least <= value <= self.most:
            bounds = {"least": self.least, "most": self.most, "value": str(value)[:100]}
            raise PydanticCustomError("range", "it must be from {least} to {most}; got {value}", bounds)
        return value


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(BaseModel):
    """What both endpoints take. A field that is null is unset; types are strict, so `"5"` is no number.

    Beside OpenAI's fields there are those of llama.cpp's sampling, `priority`, `deadline`, the seconds from arrival
    after which the request is dropped, and `supersede`, a key: a request ends the older one that has the same key.
    `model` may be left out: one model is served.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: Annotated[StreamOptions | None, WithJsonSchema(StreamOptions.model_json_schema())] = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_stops)] = None
    temperature: Divisor | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: Divisor | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_BIASES)] | None = None
    ignore_eos: bool | None = None
    response_format: Annotated[Any, WithJsonSchema({"type": "object"})] = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Annotated[Any, WithJsonSchema({"type": "object"})] = None
    priority: Any = None
    service_tier: str | None = None
    deadline: Annotated[float, Field(gt=0)] | None = None
    supersede: Annotated[str, Field(min_length=1, max_length=MAX_SUPERSEDE_LENGTH)] | None = None
    user: Annotated[str, Field(max_length=MAX_USER_LENGTH)] | None = None

    @property
    def choices(self) -> int:
        """How many choices are generated for each prompt."""
        return self.returned

    @property
    def returned(self) -> int:
        """How many choices are wanted for each prompt; of more, those that are likeliest for their length."""
        return self.n or 1

    @property
    def alternatives(self) -> int | None:
        """Beside how many others each token is told with its log probability, None if it is not."""
        return None

    @property
    def echoes(self) -> bool:
        """Whether a choice begins with its prompt."""
        return False

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

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
        with self.client_names():
            _ = self.sampling

    @functools.cached_property
    def sampling(self) -> SamplingParameters:
        """How tokens are to be chosen. All choices have one seed: sent back, it gives the same choices again."""
        given = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        given.setdefault("seed", secrets.randbits(32))
        chosen_by = 0 if self.returned < self.choices else None
        return SamplingParameters(
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            stop=tuple(self.stop or ()),
            logit_bias=_token_biases(self.logit_bias or {}),
            grammar=self._grammar[1] if self._grammar is not None else None,
            logprobs=chosen_by if self.alternatives is None else self.alternatives,
            prompt_logprobs=self.alternatives if self.echoes else None,
            **given,
        )

    @functools.cached_property
    def _grammar(self) -> tuple[str, Grammar] | None:
        """The form of the output, and the name of the field that asks for it."""
        return read_grammar({name: getattr(self, name) for name in READERS})

    @contextlib.contextmanager
    def client_names(self) -> Iterator[None]:
        """Let errors of the block name the field at fault as the client did."""
        try:
            yield
        except RequestError as error:
            error.param = self.client_name(error.param)
            raise

    def client_name(self, param: str | None) -> str | None:
        """Return what the client called the engine's parameter `param`."""
        if param == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        if param == "grammar" and self._grammar is not None:
            return self._grammar[0]
        return param


class CompletionBody(GenerationBody):
    """The body of `/v1/completions`.

    `best_of` choices are generated for each prompt, and `n` of them returned.
    """

    best_of: Annotated[int, Within(1, MAX_CHOICES)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Within(0, MAX_COMPLETION_LOGPROBS)] | None = None
    prompt: Annotated[
        list[Prompt],
        PlainValidator(_prompts),
        WithJsonSchema({"description": "a text, a list of texts, token ids, or a list of lists of them"}),
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

    def check(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown, not supported, or out of range."""
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


def check_extra_fields(fields: Mapping[str, Any], where: str = "") -> None:
    """Raise `InvalidRequestError` for the first of `fields` that is unknown, or asks for what is not supported."""
    for name, value in fields.items():
        param = f"{where}{name}"[:200]
        if name in _HARMLESS:
            continue
        if name not in _UNSUPPORTED:
            raise InvalidRequestError(f"unrecognized field {param!r}", param=param)
        same = (type(value) is type(harmless) and value == harmless for harmless in _UNSUPPORTED[name])
        if value is not None and not any(same):
            raise InvalidRequestError(f"{param} is not supported{_but(_UNSUPPORTED[name])}", param=param)


def _but(harmless: tuple[object, ...]) -> str:
    return f", except as {' or '.join(map(json.dumps, harmless))}" if harmless else ""


def _token_biases(biases: Mapping[str, float]) -> dict[int, float]:
    for token in biases:
        if not _TOKEN.fullmatch(token):
            raise InvalidRequestError(f"logit_bias keys must be token ids; got {token[:100]!r}", param="logit_bias")
    return {int(token): bias for token, bias in biases.items()}

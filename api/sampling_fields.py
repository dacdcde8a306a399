"""What the body of every request for a text may say: how tokens are chosen, and how urgent it is."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function

from llamalane.api.field_schemas import TIER, above_zero, between, close, level_or_name
from llamalane.errors import RequestError
from llamalane.scheduler import MAX_SEED, Grammar, SamplingParameters

MAX_SUPERSEDE_LENGTH = 128
MAX_INTEGER = 2**31 - 1
SMALLEST_DIVISOR = 1e-30
"""Logits are 32-bit floats: divided by much less, they are no longer finite."""

_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty"),
    *("frequency_penalty", "seed", "ignore_eos"),
)


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


class SampledBody(BaseModel):
    """What the bodies of all endpoints that generate have in common. A field that is null is unset; types are strict.

    There are the fields of llama.cpp's sampling, `priority`, `deadline`, the seconds from arrival after which the
    request is dropped, and `supersede`, a key: a request ends the older one that has the same key. `model` may be left
    out: one model is served.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False, json_schema_extra=close)

    model: str | None = None
    stream: bool | None = None
    temperature: Annotated[Divisor | None, between(0, 100)] = None
    top_k: Annotated[int | None, between(0, MAX_INTEGER)] = None
    top_p: Annotated[float | None, above_zero(1)] = None
    min_p: Annotated[float | None, between(0, 1)] = None
    repeat_penalty: Annotated[Divisor | None, above_zero(100)] = None
    repeat_last_n: Annotated[int | None, between(-1, MAX_INTEGER)] = None
    presence_penalty: Annotated[float | None, between(-2, 2)] = None
    frequency_penalty: Annotated[float | None, between(-2, 2)] = None
    seed: Annotated[int | None, between(0, MAX_SEED)] = None
    ignore_eos: bool | None = None
    priority: Annotated[Any, level_or_name()] = None
    service_tier: Annotated[str | None, TIER] = None
    deadline: Annotated[float, Field(gt=0)] | None = None
    supersede: Annotated[str, Field(min_length=1, max_length=MAX_SUPERSEDE_LENGTH)] | None = None

    @property
    def end_user(self) -> str | None:
        """Whom the client names as the one for whom it asks."""
        return None

    @property
    def choices(self) -> int:
        """How many choices are generated for each prompt."""
        return self.returned

    @property
    def returned(self) -> int:
        """How many choices are wanted for each prompt; of more, those that are likeliest for their length."""
        return 1

    @property
    def alternatives(self) -> int | None:
        """Beside how many others each token is told with its log probability, None if it is not."""
        return None

    @property
    def echoes(self) -> bool:
        """Whether a choice begins with its prompt."""
        return False

    @property
    def prompt_only(self) -> bool:
        """Whether nothing is wanted beside the prompt and what is told of it."""
        return False

    @property
    def include_usage(self) -> bool:
        """Whether a stream of chunks ends with the usage."""
        return False

    @property
    def most_tokens(self) -> int | None:
        """How many tokens may be generated, None for as many as there is room for."""
        return None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts before which the output ends."""
        return ()

    @property
    def biases(self) -> Mapping[int, float]:
        """What is added to the logits of tokens."""
        return {}

    @property
    def grammar(self) -> Grammar | None:
        """The form of the output."""
        return None

    def check(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown, not supported, or out of range."""
        with self.client_names():
            _ = self.sampling

    @functools.cached_property
    def sampling(self) -> SamplingParameters:
        """How tokens are to be chosen. All choices have one seed: sent back, it gives the same choices again."""
        given = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        given.setdefault("seed", secrets.randbits(32))
        chosen_by = 0 if self.returned < self.choices else None
        return SamplingParameters(
            max_tokens=self.most_tokens,
            stop=self.stops,
            logit_bias=self.biases,
            grammar=self.grammar,
            logprobs=chosen_by if self.alternatives is None else self.alternatives,
            prompt_logprobs=self.alternatives if self.echoes else None,
            **given,
        )

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
        return param

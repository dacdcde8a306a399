"""What every section of the configuration is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from llamalane.errors import ConfigError
from llamalane.kvcache.budget import MOST_TOKENS, UNITS, parse_amount
from llamalane.scheduler.config_file import Location


def _not_a_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


NotABool = BeforeValidator(_not_a_bool)
Integer = Annotated[int, NotABool]
Number = Annotated[float, Field(allow_inf_nan=False), NotABool]


def _tokens_or_amount(value: object, as_tokens: ValidatorFunctionWrapHandler) -> object:
    """Let what has a unit be an amount, and all else a number of tokens."""
    if not isinstance(value, str) or not any(character.isalpha() or character == "%" for character in value):
        return as_tokens(value)
    try:
        parse_amount(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return value


_Tokens = Annotated[int, Field(ge=256, le=MOST_TOKENS), NotABool]
_Amount = Annotated[str, Field(pattern=rf"^\s*[0-9]+(\.[0-9]+)?\s*({'|'.join(UNITS)}|%)\s*$")]
_TokensOrAmount = Annotated[
    _Tokens,
    WrapValidator(_tokens_or_amount, json_schema_input_type=_Tokens | _Amount),
    PlainSerializer(lambda value: value, return_type=int | str),
]
# As a union of two types, each mistake would be told twice, and with the types' names in its location.
Budget = Annotated[int | str, GetPydanticSchema(lambda _, handler: handler(_TokensOrAmount))]
"""Tokens, or text that `parse_amount` reads."""


class Section(BaseModel):
    """A part of the configuration. Unknown keys are errors; what was read does not change."""

    # Errors do not show the input: part of it may be a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)


def refuse(problems: Sequence[tuple[Location, str]]) -> None:
    """Raise a `ValidationError` with all `problems`, if there are any."""
    if problems:
        details = [
            InitErrorDetails(
                type=PydanticCustomError("unusable", "{message}", {"message": message}),
                loc=location,
                input=None,
            )
            for location, message in problems
        ]
        raise ValidationError.from_exception_data("configuration", details)


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that come more than once."""
    return [name for name, count in Counter(names).items() if count > 1]

"""What every section of the configuration is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from llamalane.scheduler.config_file import Location


def _not_a_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


NotABool = BeforeValidator(_not_a_bool)
Integer = Annotated[int, NotABool]
Number = Annotated[float, Field(allow_inf_nan=False), NotABool]


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

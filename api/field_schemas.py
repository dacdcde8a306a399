"""What the description of the API says of fields that are read by hand, so that clients can make them up from it."""

from __future__ import annotations

from typing import Any

from pydantic import Field, WithJsonSchema

from llamalane.scheduler import LEAST_URGENT, MOST_URGENT

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "minLength": 1}
_TOKENS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_NULL: Schema = {"type": "null"}
_CONTENT_PART: Schema = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}

CONTENT = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _CONTENT_PART}, _NULL]})
"""A message's content: a text, or text parts."""
DOCUMENT: Schema = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
            "additionalProperties": False,
        },
    ]
}
TIER = WithJsonSchema({"anyOf": [{"enum": ["auto", "default", "flex", "priority"]}, _NULL]})


def texts_or_tokens(most: int) -> WithJsonSchema:
    """Describe what holds one prompt or input, or `most` of them at most, each a text or token ids."""
    many = {"minItems": 1, "maxItems": most}
    ways: list[Schema] = [
        _TEXT,
        {"type": "array", "items": _TEXT, **many},
        _TOKENS,
        {"type": "array", "items": _TOKENS, **many},
    ]
    return WithJsonSchema({"anyOf": ways, "description": "a text, a list of texts, token ids, or a list of them"})


def level_or_name(*, optional: bool = True) -> WithJsonSchema:
    """Describe a level, or its name."""
    level: Schema = {"type": "integer", "minimum": MOST_URGENT, "maximum": LEAST_URGENT}
    name: Schema = {"type": "string", "description": "A level's name, as the configuration has it."}
    return WithJsonSchema({"anyOf": [level, name, *([_NULL] if optional else [])]})


def strings(most: int, longest: int, *, single: bool = True) -> WithJsonSchema:
    """Describe at most so many texts, none of them empty or longer than `longest`; a `single` one may stand alone."""
    text = {**_TEXT, "maxLength": longest}
    several = {"type": "array", "items": text, "maxItems": most}
    return WithJsonSchema({"anyOf": [*([text] if single else []), several, _NULL]})


def token_biases(most: int) -> WithJsonSchema:
    """Describe biases by token id."""
    biases: Schema = {
        "type": "object",
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "maxProperties": most,
    }
    return WithJsonSchema({"anyOf": [biases, _NULL]})


def between(least: float, most: float) -> Any:
    """Describe a number from `least` to `most`; whoever uses it checks that."""
    return Field(json_schema_extra={"minimum": least, "maximum": most})


def above_zero(most: float) -> Any:
    """Describe a number above 0 and at most `most`; whoever uses it checks that."""
    return Field(json_schema_extra={"exclusiveMinimum": 0, "maximum": most})


def close(schema: Schema) -> None:
    """Say in the schema of an object that it has no fields but these: what is taken beside them changes nothing."""
    schema["additionalProperties"] = False

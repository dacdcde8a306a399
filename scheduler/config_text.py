"""Explains the configuration: an example file and a JSON schema, both made from the models' fields."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

_HEAD = """\
# Every key of llamalane's configuration, with its default. What is left out keeps its default.
# ${env:NAME} in a value is an environment variable, ${env:NAME:-default} one that may be unset or empty.
# A variable such as LLAMALANE_SCHEDULER__CEILING goes before the value in this file."""
_COMMENT_WIDTH = 90
_REFERENCE = {"type": "string", "pattern": r"\$\{env:"}


def example(kind: type[BaseModel]) -> str:
    """Return a YAML file with every key of `kind`, explained; a key without a default has an example."""
    sections = ["\n".join(lines) for lines in _entries(_default(kind))]
    return "\n\n".join([_HEAD, *sections]) + "\n"


def editor_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a YAML file of `kind`, in which `${env:NAME}` may stand for any value."""
    schema = kind.model_json_schema(schema_generator=_EditorSchema)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


class _EditorSchema(GenerateJsonSchema):
    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return _or_reference(super().int_schema(schema))

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return _or_reference(super().float_schema(schema))

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return _or_reference(super().bool_schema(schema))

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        return _or_reference(super().literal_schema(schema))

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        return _or_reference(super().enum_schema(schema))


def _or_reference(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {"anyOf": [schema, _REFERENCE]}


def _default(kind: type[BaseModel]) -> BaseModel:
    """Return `kind` at its defaults, whatever the environment says."""
    required = {}
    for name, field in kind.model_fields.items():
        if field.is_required():
            annotation: Any = field.annotation
            required[name] = TypeAdapter(annotation).validate_python((field.examples or [None])[0])
    return kind.model_construct(**required)


def _entries(model: BaseModel) -> Iterable[list[str]]:
    """Yield the lines of each field, with its explanation above."""
    kind = type(model)
    schema = kind.model_json_schema()
    values = model.model_dump(mode="json")
    for name, field in kind.model_fields.items():
        value = getattr(model, name)
        limits = _range(schema["properties"][name], schema.get("$defs", {}))
        explanation = f"{field.description} ({limits})" if limits else f"{field.description}"
        yield [
            *(f"# {line}" for line in textwrap.wrap(explanation, _COMMENT_WIDTH)),
            *_entry(name, value, values[name]),
        ]


def _entry(name: str, value: object, plain: Any) -> list[str]:
    if isinstance(value, BaseModel):
        return [f"{name}:", *(f"  {line}" for entry in _entries(value) for line in entry)]
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return [f"{name}:", *(line for item in value for line in _item(item))]
    # A list around the value keeps YAML from writing an end mark after it.
    text = yaml.safe_dump([plain], default_flow_style=True, sort_keys=False, width=math.inf)
    return [f"{name}: {text.strip()[1:-1]}"]


def _item(model: BaseModel) -> list[str]:
    (*explanation, first), *others = _entries(model)
    lines = [*explanation, f"- {first}", *(f"  {line}" for entry in others for line in entry)]
    return [f"  {line}" for line in lines]


def _range(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Say which values are allowed, if the schema limits them."""
    for option in schema.get("anyOf", [schema]):
        target = definitions[option["$ref"].rpartition("/")[2]] if "$ref" in option else option
        low, above, high = (target.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
        if "enum" in target:
            return ", ".join(target["enum"])
        if low is not None:
            return f"{low} to {high}" if high is not None else f"{low} or more"
        if above is not None:
            return f"more than {above}"
    return ""

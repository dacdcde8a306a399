"""Explains the configuration: an example file and a JSON schema, both made from the models' fields."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

_HEAD = """\
# The configuration of llamalane: every key with its default.
# ${env:NAME} in a value stands for an environment variable, ${env:NAME:-default} for one that may be unset.
# A variable such as LLAMALANE_SCHEDULER__CEILING goes before what is written here.
"""
_WIDTH = 100
_REFERENCE = {"type": "string", "pattern": r"\$\{env:"}


def example(settings: type[BaseModel]) -> str:
    """Return a YAML file with every key of `settings`, commented, at its default; what has none has an example."""
    schema = settings.model_json_schema()
    sections = _Example(schema["$defs"]).sections(schema, {})
    return "\n".join([_HEAD, *("\n".join([*lines, ""]) for lines in sections)])


def editor_schema(settings: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a YAML file of `settings`, before references to the environment are resolved."""
    schema = settings.model_json_schema(schema_generator=_EditorSchema)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


class _Example:
    """Writes YAML from a JSON schema; `values` go before the defaults in it."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def sections(self, schema: Mapping[str, Any], values: Mapping[str, Any]) -> list[list[str]]:
        return [
            [*_comment(_explain(self._resolve(entry) | entry)), *self._entry(name, entry, values)]
            for name, entry in schema["properties"].items()
        ]

    def _entry(self, name: str, entry: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
        target = self._resolve(entry)
        if "properties" in target:
            return [f"{name}:", *_indent(self._mapping(target, values.get(name, {})))]
        default = values[name] if name in values else target.get("default", target.get("examples", [{}])[0])
        items = self._resolve(target.get("items", {}))
        if "properties" not in items:
            return [f"{name}: {_flow(default)}"]
        lines = [f"{name}:"]
        for item in default if isinstance(default, list) else [default]:
            lines += _list_item(self._mapping(items, item))
        return lines

    def _mapping(self, schema: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
        return [line for section in self.sections(schema, values) for line in section]

    def _resolve(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Follow a reference to a definition."""
        if "$ref" not in schema:
            return dict(schema)
        return {**self._definitions[schema["$ref"].rpartition("/")[2]], **schema}

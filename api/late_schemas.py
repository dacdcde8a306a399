"""Schemas in the API's description that are written when somebody asks for it, which few do.

Until then a model stands there by its name. FastAPI, if it was told the model, would build a validator for each answer
of each route, which nothing uses, since routes read bodies and write answers by themselves.
"""

from __future__ import annotations

import pkgutil
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

_SCHEMAS = "#/components/schemas/{model}"
_BODY = "body "
_ANSWER = "answer "


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return what stands for the schema of a body, or of a stream's events."""
    return _later(_BODY, model)


def answer_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return what stands for a reference to the schema of an answer."""
    return _later(_ANSWER, model)


class _GenerateSchema(GenerateJsonSchema):
    """Leaves out defaults of null, as FastAPI does: they say no more than that a field may be missing."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        written = super().default_schema(schema)
        return {key: value for key, value in written.items() if key != "default" or value is not None}


class SchemaWriter:
    """Writes schemas where models stand; those that are referred to go to `schemas`, under their names."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self._schemas = schemas
        self._written: dict[str, dict[str, Any]] = {}

    def write(self, part: Any) -> None:
        """Complete a part of the description. Raises `RuntimeError` when two schemas would have one name."""
        if isinstance(part, dict):
            reference = part.get("$ref")
            if isinstance(reference, str) and reference.startswith((_BODY, _ANSWER)):
                part.clear()
                part.update(self._schema_of(reference))
            else:
                for value in part.values():
                    self.write(value)
        elif isinstance(part, list):
            for value in part:
                self.write(value)

    def _schema_of(self, reference: str) -> dict[str, Any]:
        if reference not in self._written:
            if reference.startswith(_BODY):
                schema = self._generate(reference.removeprefix(_BODY), "validation")
            else:
                name = reference.rpartition(":")[2]
                self._add(name, self._generate(reference.removeprefix(_ANSWER), "serialization"))
                schema = {"$ref": _SCHEMAS.format(model=name)}
            self._written[reference] = schema
        return self._written[reference]

    def _generate(self, path: str, mode: Literal["validation", "serialization"]) -> dict[str, Any]:
        model: type[BaseModel] = pkgutil.resolve_name(path)
        schema = model.model_json_schema(ref_template=_SCHEMAS, schema_generator=_GenerateSchema, mode=mode)
        for name, definition in schema.pop("$defs", {}).items():
            self._add(name, definition)
        return schema

    def _add(self, name: str, schema: dict[str, Any]) -> None:
        if self._schemas.setdefault(name, schema) != schema:
            raise RuntimeError(f"two schemas are called {name}")


def _later(use: str, model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": f"{use}{model.__module__}:{model.__qualname__}"}

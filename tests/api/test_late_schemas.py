"""Schemas of the API's description: that they are written when it is asked for, and how."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field

from llamalane.api import create_app
from llamalane.api.batches import answer_schemas as batches
from llamalane.api.late_schemas import SchemaWriter, answer_schema, body_schema
from tests.api.fake_engine import ScriptedEngine, as_engine


class Colour(BaseModel):
    name: str


class Pen(BaseModel):
    colour: Colour
    ink: float | None = None
    points: int = Field(default=1)


def described() -> dict[str, Any]:
    return {"body": {"schema": body_schema(Pen)}, "answers": [{"schema": answer_schema(Pen)}]}


def test_a_body_is_written_in_its_place_and_an_answer_under_its_name() -> None:
    description, schemas = described(), dict[str, Any]()
    SchemaWriter(schemas).write(description)
    assert description["body"]["schema"] == schemas["Pen"]
    assert description["answers"] == [{"schema": {"$ref": "#/components/schemas/Pen"}}]
    assert schemas.keys() == {"Pen", "Colour"}
    assert schemas["Pen"]["properties"]["colour"] == {"$ref": "#/components/schemas/Colour"}


def test_a_default_is_told_unless_it_is_null() -> None:
    schemas = dict[str, Any]()
    SchemaWriter(schemas).write(described())
    assert schemas["Pen"]["properties"]["points"]["default"] == 1
    assert "default" not in schemas["Pen"]["properties"]["ink"]


def test_what_is_complete_stays_as_it_is() -> None:
    description, schemas = described(), dict[str, Any]()
    SchemaWriter(schemas).write(description)
    before = str((description, schemas))
    SchemaWriter(schemas).write(description)
    assert str((description, schemas)) == before


def test_two_schemas_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(BaseModel):
        size: int

    Other.__qualname__ = Other.__name__ = "Colour"
    monkeypatch.setattr(batches, "Colour", Other, raising=False)
    monkeypatch.setattr(Other, "__module__", batches.__name__)
    with pytest.raises(RuntimeError, match="two schemas are called Colour"):
        SchemaWriter({}).write([answer_schema(Colour), answer_schema(Other)])


def test_an_app_writes_none_until_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = SchemaWriter._generate

    def generate(writer: SchemaWriter, path: str, mode: Any) -> dict[str, Any]:
        written.append(path)
        return write(writer, path, mode)

    monkeypatch.setattr(SchemaWriter, "_generate", generate)
    app = create_app(as_engine(ScriptedEngine()))
    assert written == []
    first = app.openapi()
    assert "llamalane.api.chat:ChatBody" in written
    assert len(written) == len(set(written)), "a schema is written twice"
    assert app.openapi() == first

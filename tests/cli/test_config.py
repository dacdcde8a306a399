"""`llamalane config`: check, example and schema."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from llamalane.cli import main


@pytest.fixture(autouse=True)
def _no_variables() -> Iterator[None]:
    others = {name: value for name, value in os.environ.items() if not name.upper().startswith("LLAMALANE_")}
    with mock.patch.dict(os.environ, others, clear=True):
        yield


def run(*arguments: str) -> int:
    """Run the command line as a process would; returns its exit code."""
    try:
        return main(["config", *arguments])
    except SystemExit as end:
        return int(end.code or 0)


def test_the_example_passes_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("example") == 0
    text = capsys.readouterr().out
    assert "\n    port: 8000" not in text
    assert "\n  port: 8000\n" in text
    file = tmp_path / "example.yaml"
    file.write_text(text, encoding="utf-8")

    assert run("check", str(file)) == 2
    assert capsys.readouterr().err == f"error: {file}: models[0].path: there is no file {tmp_path / 'model.gguf'}\n"
    assert run("check", "--no-models", str(file)) == 0
    (tmp_path / "model.gguf").touch()
    assert run("check", str(file)) == 0
    assert capsys.readouterr().out == f"{file} can be used\n" * 2


def test_the_check_tells_all_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("models: [{path: m.gguf}]\nkv: {bugdet: 1}\napi: {port: x}\n", encoding="utf-8")
    assert run("check", str(file)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    first, second = shown.err.splitlines()
    assert first.startswith(f"error: {file}:2: unknown key 'bugdet' in kv; did you mean 'budget'?")
    assert second.startswith(f"{file}:3: api.port must be a valid integer")


def test_the_check_reads_the_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "good.yaml"
    file.write_text("models: [{path: m.gguf}]\n", encoding="utf-8")
    with mock.patch.dict(os.environ, {"LLAMALANE_API__PORT": "x"}):
        assert run("check", "--no-models", str(file)) == 2
    assert capsys.readouterr().err.startswith("error: environment variable LLAMALANE_API__PORT: ")


def test_the_schema_is_json_of_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("schema") == 0
    schema = json.loads(capsys.readouterr().out)
    assert list(schema["properties"]) == ["models", "streams", "kv", "scheduler", "api"]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["check", "--help"]])
def test_help_is_given(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(*arguments)
    shown = capsys.readouterr()
    assert "llamalane config" in shown.out + shown.err

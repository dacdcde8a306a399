"""`llamalane generate`, in a process of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.process import run


def test_the_text_goes_to_standard_output_and_the_rest_to_standard_error(tiny_model: Path) -> None:
    result = run("generate", tiny_model, "hello", "--max-tokens", "12", "--seed", "7", "--threads", "1")
    assert result.returncode == 0
    assert result.stdout.endswith("\n")
    assert len(result.stdout) > 1
    assert re.fullmatch(
        r"24 \+ 12 tokens, first after \d+\.\d\d s, \d+\.\d tokens/s, finish reason length, seed 7\n", result.stderr
    ), result.stderr


def test_the_same_seed_gives_the_same_text(tiny_model: Path) -> None:
    options = [
        "--no-chat",
        "--max-tokens",
        "20",
        "--seed",
        "3",
        "--temperature",
        "1.5",
        "--top-k",
        "0",
        "--threads",
        "1",
    ]
    first = run("generate", tiny_model, "hello", *options)
    second = run("generate", tiny_model, "-", *options, stdin="hello")
    assert first.stdout == second.stdout
    assert first.returncode == second.returncode == 0


def test_the_model_may_come_from_a_file(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(f"models: [{{path: {tiny_model}}}]\nstreams: {{lanes: [{{places: 2, threads: 1}}]}}\n")
    result = run("generate", "hello", "--config", file, "--max-tokens", "3", "--no-chat")
    assert result.returncode == 0
    assert result.stderr.startswith("6 + 3 tokens, ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello", "--top-p", "3"], "top_p must be above 0 and at most 1; got 3"),
        (["hello", "--max-tokens", "0"], "max_tokens must be from 1 to "),
        (
            ["x" * 3000, "--no-chat"],
            "the prompt has 3001 tokens; a sequence holds 2048, one of which is needed for the output: ",
        ),
    ],
)
def test_what_cannot_be_generated_is_told_in_one_line(tiny_model: Path, arguments: list[str], message: str) -> None:
    result = run("generate", tiny_model, *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1

"""`llamalane plan`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

import pytest

from llamalane.cli import main
from tests.models.tiny_gguf import Kind
from tests.streams.llama.cpu_as_gpu import as_if_there_were

CELL = 2 * 64 * 2
"""Bytes of a token in the tiny model, as f16."""


@pytest.fixture(autouse=True)
def _no_variables() -> Iterator[None]:
    others = {name: value for name, value in os.environ.items() if not name.upper().startswith("LLAMALANE_")}
    with mock.patch.dict(os.environ, others, clear=True):
        yield


def run(*arguments: str | Path) -> int:
    """Run the command line as a process would; returns its exit code."""
    try:
        return main(["plan", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)


def configuration(folder: Path, model: Path, text: str) -> Path:
    file = folder / "llamalane.yaml"
    file.write_text(f"models: [{{path: {model}}}]\n{text}\n")
    return file


def test_a_model_is_planned_as_it_would_be_served(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny_model, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    sizes = shown["bytes"]
    assert (shown["model"], shown["device"], shown["measured"]) == (str(tiny_model), "cpu", True)
    assert sizes["weights"] == 429_312
    assert sizes["each_token"] == CELL
    assert sizes["kv"] == 8 * 2048 * CELL
    assert sizes["needed"] == sizes["weights"] + sizes["kv"] + sizes["computing"] <= sizes["free"]
    assert (sizes["missing"], sizes["swap"]) == (0, 1 << 30)
    (lane,) = shown["lanes"]
    assert (lane["layout"], lane["cells"], lane["places"], lane["spare"]) == ("partitioned", 16_384, 8, 0)
    assert lane["fitting"] == {"256": 8, "1024": 8, "4096": 0, "2048": 8}


def test_a_configuration_is_planned_with_its_lanes(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "kv: {budget: 3MiB, layout: paged}\nstreams: {lanes: [{name: a, places: 2}, {name: b, places: 4}]}"
    assert run(configuration(tmp_path, tiny_model, text), "--json") == 0
    lanes = json.loads(capsys.readouterr().out)["lanes"]
    assert [(lane["name"], lane["cells"], lane["spare"]) for lane in lanes] == [("a", 4096, 2), ("b", 8192, 4)]
    assert [lane["fitting"]["4096"] for lane in lanes] == [1, 2]
    assert [lane["bytes"]["cells"] for lane in lanes] == [1 << 20, 2 << 20]


def test_the_tables_say_the_same_in_words(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny_model, "--places", "2", "--kv-cells", "4096") == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines()]
    assert [
        "KV",
        "cells",
        "1.0",
        "MiB",
        "4096",
        "tokens",
        "of",
        "256",
        "bytes:",
        "keys",
        "f16,",
        "values",
        "f16",
    ] in rows
    assert ["main", "partitioned", "1.0", "MiB", "4096", "2", "0", "2048", "2", "2", "0", "2"] in rows
    assert "measured" in shown
    assert rows[-1] == ["this", "fits"]


def test_states_are_told_of_a_model_that_keeps_them(
    tiny_models: Mapping[Kind, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny_models[Kind.RECURRENT]) == 0
    assert "8 sequences of 19456 bytes" in capsys.readouterr().out


GPUS = "streams: {lanes: [{name: a, device: 1, threads: 1}, {name: b, threads: 1}, {name: c, device: 1, threads: 1}]}"


def test_each_gpu_that_lanes_name_is_told(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_if_there_were(monkeypatch, ["NVIDIA L4", "NVIDIA L4"])
    file = configuration(tmp_path, tiny_model, GPUS)
    assert run(file, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert {device["name"]: device["lanes"] for device in shown["devices"]} == {"GPU 1": ["a", "c"], "GPU 0": ["b"]}
    sizes = [device["bytes"] for device in shown["devices"]]
    assert [size["kv"] for size in sizes] == [2 * 8 * 2048 * CELL, 8 * 2048 * CELL]
    for name in ("weights", "kv", "computing", "needed"):
        assert shown["bytes"][name] == sum(size[name] for size in sizes)
    assert run(file) == 0
    words = capsys.readouterr().out
    rows = [line.split() for line in words.splitlines()]
    assert "on the 2 GPUs" in words
    assert any(row[:4] == ["GPU", "1", "a,", "c"] for row in rows)
    assert any(row[:3] == ["GPU", "0", "b"] for row in rows)


def test_one_device_needs_no_line_of_its_own(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny_model) == 0
    assert "Devices" not in capsys.readouterr().out


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_too_little_memory_has_exit_code_1_and_numbers(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], as_json: list[str]
) -> None:
    file = configuration(tmp_path, tiny_model, "kv: {budget: 500GB}")
    assert run(file, *as_json) == 1
    shown = capsys.readouterr().out
    if as_json:
        sizes = json.loads(shown)["bytes"]
        assert sizes["missing"] == sizes["needed"] - sizes["free"] > 0
    else:
        assert "465.7 GiB are needed and " in shown
        assert "lower kv.budget (the KV cache takes 465.7 GiB)" in shown
        assert "estimated, at least" in shown


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("kv: {budget: 1KB}", "kv.budget: 1KB, which is 1000 bytes, is too small for 8 places on 1 lanes"),
        ("kv: {value_type: q8_0}", "kv.value_type: q8_0 is stored in blocks of 32 numbers"),
        ("kv: {budget: 5 apples}", "the unit 'apples' is none of"),
        ("kv: {value_type: q8_0, flash_attention: off}", "q8_0 is quantized and needs flash_attention"),
    ],
)
def test_what_can_never_be_is_a_mistake_of_the_configuration(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], settings: str, complaint: str
) -> None:
    assert run(configuration(tmp_path, tiny_model, settings)) == 2
    assert complaint in capsys.readouterr().err


def test_a_file_that_is_no_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"nope")
    assert run(file) == 1
    assert "is not a GGUF file" in capsys.readouterr().err


def test_help_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "llamalane plan [OPTIONS] {FILE}" in capsys.readouterr().out


def test_models_that_embed_are_planned_with_their_lanes(
    tmp_path: Path, tiny_model: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "llamalane.yaml"
    file.write_text(
        f"""\
models:
  - path: {tiny_model}
  - {{path: {tiny_encoder}, name: vectors, task: embed}}
streams:
  lanes: [{{name: main, places: 2}}, {{name: v, model: vectors, places: 3, count: 2}}]
"""
    )
    assert run(file, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["model"] == str(tiny_model)
    assert [lane["name"] for lane in shown["lanes"]] == ["main"]
    (model,) = shown["embedding"]
    assert (model["model"], model["task"], model["pooling"], model["max_input"]) == ("vectors", "embed", "cls", 96)
    assert (model["step_tokens"], model["numbers"]) == (512, 48)
    assert [(lane["name"], lane["places"]) for lane in model["lanes"]] == [("v-1", 3), ("v-2", 3)]
    taken = model["weights"] + sum(lane["bytes"]["computing"] for lane in model["lanes"])
    sizes = shown["bytes"]
    assert sizes["embedding"] == taken
    assert sizes["needed"] == sizes["weights"] + sizes["kv"] + sizes["computing"] + taken
    assert run(file) == 0
    shown = capsys.readouterr().out
    assert "models that embed or rerank, with their lanes" in shown
    assert ["vectors", "embed", "cls", "v-1,", "v-2", "6", "96", "512", "48"] in [
        line.split()[:9] for line in shown.splitlines()
    ]


def test_a_model_may_embed_alone(tiny_encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny_encoder, "--task", "embed", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["lanes"], shown["bytes"]["needed"]) == ([], shown["bytes"]["embedding"])
    assert run(tiny_encoder, "--task", "embed") == 0
    shown = capsys.readouterr().out
    assert "KV cells" not in shown
    assert "this fits" in shown
    assert run(tiny_encoder) == 1
    assert "needs `task: embed`" in capsys.readouterr().err
    assert run(tiny_encoder, "--task", "rerank") == 1
    assert "no head that scores" in capsys.readouterr().err

"""The command, from its options to its tables, numbers and pictures."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from llamalane.bench.simulator.measured import DEFAULT_SPEED
from llamalane.bench.simulator.speed import save_speed
from llamalane.cli import main

SMALL = ("--requests", "40", "--seed", "1", "--load", "0.8")


def run(*arguments: object, command: Sequence[str] = ("simulate",)) -> int:
    """Return the exit code of a command; typer ends a command below another by raising it."""
    try:
        return main([*command, *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)


def test_every_policy_is_in_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL) == 0
    output = capsys.readouterr().out
    for policy in ("ours", "fifo", "priority", "round-robin", "shortest"):
        assert output.count(f"\n| {policy} | ") == 4  # three levels and the totals
    assert "0.80 of the estimated capacity" in output


@pytest.mark.parametrize("workload", ["bursts", "burstgpt", "azure-conversation", "azure-code", "chat"])
def test_every_workload_can_be_simulated(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--workload", workload, "--policy", "ours", "--tenants", 3) == 0
    assert f"Workload {workload}: about 40 requests, seed 1." in capsys.readouterr().out


def test_a_configuration_says_what_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("models: [{path: model.gguf}]\nstreams: {lanes: [{name: a, places: 3}, {name: b, places: 2}]}\n")
    assert run(config, *SMALL, "--policy", "ours") == 0
    assert "- 2 lanes with 5 places; at most 512 tokens in a step." in capsys.readouterr().out
    assert run(config, *SMALL, "--policy", "ours", "--lanes", 20) == 0
    assert "- 20 lanes with 60 places" in capsys.readouterr().out


def test_a_log_is_replayed_as_it_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    lines = [{"arrival": number / 2, "prompt_tokens": 20, "output_tokens": 5} for number in range(10)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("--replay", log, "--policy", "fifo") == 0
    output = capsys.readouterr().out
    assert "## 2 requests/s" in output
    assert "| fifo | 3 | 10 | " in output


def test_measured_steps_are_read_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "speed.json"
    save_speed(DEFAULT_SPEED, file, "the default")
    assert run(*SMALL, "--policy", "ours") == 0
    default = capsys.readouterr().out
    assert run(*SMALL, "--policy", "ours", "--speed", file) == 0
    assert capsys.readouterr().out == default


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--workload", "nonsense"], 2, "there is no workload 'nonsense'"),
        (["--policy", "nonsense"], 2, "there is no policy 'nonsense'"),
        (["--load", "1", "--rate", "1"], 2, "either --load or --rate"),
        (["--replay", "nowhere.jsonl"], 2, "cannot be read"),
        (["--speed", "nowhere.json"], 2, "cannot be read"),
        (["nowhere.yaml"], 2, "cannot be read"),
        (["--calibrate"], 1, "cannot read the model model.gguf"),
    ],
)
def test_what_cannot_be_simulated_is_told_in_one_line(
    arguments: list[str], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert complaint in error


def test_pictures_without_matplotlib_are_refused_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(*SMALL, "--out", tmp_path / "out") == 1
    assert capsys.readouterr().err == "error: pictures need matplotlib: pip install matplotlib\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_numbers_and_pictures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    assert run(*SMALL, "--load", "1.2", "--policy", "ours", "--policy", "fifo", "--tenants", 2, "--out", folder) == 0
    assert {file.name for file in folder.iterdir()} == {
        "results.json",
        "first-token.png",
        "wait.png",
        "goodput.png",
        "fairness.png",
        "lane.png",
    }
    runs = json.loads((folder / "results.json").read_text())["runs"]
    assert [(one["policy"], round(one["load"], 2)) for one in runs] == [
        ("ours", 0.8),
        ("fifo", 0.8),
        ("ours", 1.2),
        ("fifo", 1.2),
    ]
    assert all(one["requests"] == 40 for one in runs)


def test_the_simulator_measures_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--requests", 200, "--lanes", 20, command=("bench", "simulator")) == 0
    output = capsys.readouterr().out
    assert output.startswith("200 requests on 20 lanes under ours at 0.9 of the capacity: ")
    assert "A million requests would take" in output


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("option", ["--load", "--rate"])
def test_a_load_is_a_number_greater_than_nothing(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{option}={value}") != 0
    assert "must be a number greater than 0" in capsys.readouterr().err

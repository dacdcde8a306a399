"""How findings are told, on numbers that were made up, and what the command makes of its options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llamalane.bench.candidates import Candidate
from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison
from llamalane.bench.candidates.tables import CandidatesReport, Findings, candidates_markdown, comparison_line
from llamalane.bench.report import to_json
from llamalane.cli import EXIT_USAGE, main
from tests.bench.test_report import MACHINE, rows

SHORT = Comparison(situation="short", now=(1.0, 2.0, 4.0), other=(2.0, 2.0, 2.0), remarks={"accepted": "50 %"})
LONG = Comparison(situation="long", now=(1500.0, 1000.0, 3000.0), other=(150.0, 100.0, 600.0))
REPORT = CandidatesReport(
    plan=CandidatesPlan(model=Path("/models/small.gguf"), threads=2, rounds=3, seed=1),
    machine=MACHINE,
    findings=(
        Findings(
            candidate=Candidate.KV_TYPES,
            title="KV cells in q8_0",
            unit="ms a step",
            now="f16",
            other="q8_0",
            method="In turn.",
            comparisons=(SHORT, LONG),
        ),
    ),
)


def test_each_situation_has_its_line() -> None:
    text = candidates_markdown(REPORT)
    assert "## kv-types: KV cells in q8_0\n\nIn turn.\n\n" in text
    assert "small.gguf, 2 threads; 3 rounds; seed 1" in text
    assert rows(text) == [
        ["situation", "f16, ms a step", "q8_0, ms a step", "ratio", "accepted"],
        ["short", "2.00 (1.00 to 4.00)", "2.00 (2.00 to 2.00)", "1.00 (0.50 to 2.00)", "50 %"],
        ["long", "1,500 (1,000 to 3,000)", "150 (100 to 600)", "0.10 (0.10 to 0.20)", ""],
    ]


def test_progress_is_told_in_a_line() -> None:
    assert comparison_line(Candidate.KV_TYPES, SHORT) == (
        "kv-types, short: 2.00 (1.00 to 4.00), 2.00 (2.00 to 2.00), ratio 1.00 (0.50 to 2.00); accepted: 50 %"
    )


def test_a_file_holds_every_number() -> None:
    (findings,) = json.loads(to_json(REPORT))["findings"]
    assert findings["candidate"] == "kv-types"
    assert findings["comparisons"][0]["now"] == [1.0, 2.0, 4.0]
    assert findings["comparisons"][0]["remarks"] == {"accepted": "50 %"}


def test_the_command_measures_what_is_asked_for(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    options = ["--only", "row-order", "--rounds", "1", "--threads", "1", "--busy-ok", "--json", str(file)]
    assert run("bench", "candidates", str(tiny_model), *options) == 0
    told = capsys.readouterr()
    assert told.out.count("\n## ") == 1
    assert "row-order, shared cells, every second of 8: " in told.err
    assert json.loads(file.read_text())["plan"]["rounds"] == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--only", "magic"], "'magic' is not one of"),
        (["--rounds", "0"], "greater than or equal to 1"),
        (["--only", "free-threading", "--busy-ok"], "name another one with --python"),
    ],
)
def test_wrong_options_are_refused(
    options: list[str], why: str, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "candidates", str(tiny_model), *options) == EXIT_USAGE
    assert why in capsys.readouterr().err


def run(*arguments: str) -> int:
    """Return the exit code."""
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)

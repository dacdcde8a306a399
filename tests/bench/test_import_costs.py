"""What imports cost: that each is measured, in processes of their own, and how it is told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from llamalane.bench.import_costs import NOTHING, ImportCosts, imports_markdown, measure_imports
from llamalane.bench.summary import Distribution


def test_every_import_is_measured_in_each_round() -> None:
    told: list[str] = []
    nothing, json = measure_imports([NOTHING, "import json"], rounds=2, tell=told.append)
    assert told == ["round 1 of 2", "round 2 of 2"]
    assert nothing.seconds.count == json.seconds.count == 2
    assert nothing.modules < json.modules
    assert nothing.seconds.median > 0


def test_an_import_that_fails_ends_the_measurement() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        measure_imports(["import nothing_of_that_name"])


def test_no_import_has_to_compile_what_it_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "loaded.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    count = "import os, loaded; assert os.path.exists(loaded.__cached__)"
    measure_imports(["import loaded", count], rounds=1)
    assert [path.name for path in tmp_path.iterdir()] == ["loaded.py"]  # nor does a measurement leave anything


def test_costs_are_told_in_milliseconds() -> None:
    seconds = Distribution(count=3, mean=0.3, median=0.25, p90=0.5, p95=0.5, p99=0.5, worst=0.5)
    lines = imports_markdown([ImportCosts(NOTHING, seconds, 30), ImportCosts("import llamalane", seconds, 60)])
    assert lines.splitlines()[2:] == ["| nothing | 250 | 500 | 30 |", "| `import llamalane` | 250 | 500 | 60 |"]

"""The command `llamalane bench floor`: carries the plan out, and prints what came of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import anyio

from llamalane.bench.floor.measuring import measure_floor
from llamalane.bench.floor.plan import FloorPlan, FloorReport
from llamalane.bench.floor.tables import floor_markdown
from llamalane.bench.machine import describe_machine
from llamalane.bench.report import to_json

__all__ = ["FloorPlan", "measure"]


def measure(plan: FloorPlan, json_file: Path | None) -> None:
    """Measure, and print the tables."""
    machine = describe_machine()
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    results = anyio.run(measure_floor, plan, _tell, backend_options={"use_uvloop": has_uvloop})
    report = FloorReport(plan=plan, machine=machine, results=results)
    print(floor_markdown(report))
    if json_file is not None:
        json_file.write_text(to_json(report))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

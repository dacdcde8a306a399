"""Thousands of random operations leave nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

OPERATIONS = 8000
FLAT = 1_000_000 / 1000
"""Bytes for each request: memory may grow by less than 1 MB in 1,000 of them."""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_random_operations_leave_nothing_behind(tiny_model: Path, backend: str) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.engine.soak", str(tiny_model), backend, str(OPERATIONS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    outcomes = account["outcomes"]
    assert account["operations"] == sum(outcomes.values()) == OPERATIONS
    for expected in ("wait", "read", "drop", "cancel_the_task", "RequestCancelledError", "DeadlineExceededError"):
        assert outcomes[expected] > 20, f"{expected} hardly happened: {outcomes}"
    assert account["refused"] > 0
    assert account["free_places"] == account["places"]
    assert account["reserved_cells"] == account["waiting"] == 0
    assert account["threads_left"] == []
    assert account["system_threads_left"] <= 0
    assert account["growth"] < FLAT

"""What the package offers, and what merely importing it costs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
# llamalane.bench is missing here: it offers commands, not names.
OFFERING = (
    "llamalane",
    "llamalane.api",
    "llamalane.cli",
    "llamalane.kvcache",
    "llamalane.scheduler",
    "llamalane.streams",
    "llamalane.streams.llama",
)
HEAVY = ("cuda", "fastapi", "llama_cpp", "numpy", "pydantic", "pydantic_settings", "starlette", "uvicorn")


@pytest.mark.parametrize("name", OFFERING)
def test_every_public_name_exists(name: str) -> None:
    module = importlib.import_module(name)
    names: list[str] = module.__all__
    assert len(names) == len(set(names)), "a name is listed twice"
    missing = [public for public in names if not hasattr(module, public)]
    assert missing == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, llamalane; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "llamalane" in loaded
    assert loaded.isdisjoint(HEAVY)

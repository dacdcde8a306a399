"""Loads and runs the examples as they stand in their folder."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.cli.process import environment

EXAMPLES = Path(__file__).parents[2] / "examples"
CLIENTS = Path(sys.prefix) / "examples" / "bin" / "python"
"""The Python for which `make examples` installs LangChain and LlamaIndex."""

LoadExample = Callable[[str], ModuleType]


@pytest.fixture
def load_example(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> LoadExample:
    """Loads an example as a module; its model is the tiny one."""

    def load(name: str) -> ModuleType:
        monkeypatch.setenv("MODEL", str(tiny_model))
        spec = importlib.util.spec_from_file_location(f"examples.{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # where its annotations are looked up
        spec.loader.exec_module(module)
        return module

    return load


def run_example(
    name: str, *arguments: object, stdin: str = "", python: Path = Path(sys.executable)
) -> subprocess.CompletedProcess[str]:
    """Run an example as a program to its end."""
    return subprocess.run(
        [str(python), str(EXAMPLES / f"{name}.py"), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env=environment(PYTHONIOENCODING="utf-8"),
        timeout=120,
        check=False,
    )

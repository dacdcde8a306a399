"""What the package offers, and what merely importing it costs."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import llamalane
from llamalane.streams import llama

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
HEAVY = frozenset(
    {
        "anyio",
        "cuda",
        "fastapi",
        "jinja2",
        "llama_cpp",
        "llguidance",
        "numpy",
        "prometheus_client",
        "pydantic",
        "pydantic_settings",
        "rich",
        "starlette",
        "trio",
        "typer",
        "uvicorn",
        "uvloop",
        "yaml",
    }
)
"""What llamalane can do with, and an import of it may have to wait for."""
CONFIGURATION = {"anyio", "pydantic", "pydantic_settings", "yaml"}


@pytest.mark.parametrize("name", OFFERING)
def test_every_public_name_exists(name: str) -> None:
    module = importlib.import_module(name)
    names: list[str] = module.__all__
    assert len(names) == len(set(names)), "a name is listed twice"
    missing = [public for public in names if not hasattr(module, public)]
    assert missing == []


@pytest.mark.parametrize("package", [llamalane, llama], ids=lambda package: package.__name__)
def test_no_module_can_take_the_place_of_a_name_that_is_loaded_late(package: ModuleType) -> None:
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert modules.isdisjoint(package._HOMES)


def loaded_by(statement: str) -> set[str]:
    """Name the modules that an interpreter has after `statement`."""
    command = [sys.executable, "-c", f"{statement}\nimport sys; print(*sys.modules)"]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "libraries"),
    [
        ("import llamalane", set()),
        ("from llamalane import SamplingParameters, Grammar", {"anyio"}),
        ("import llamalane.kvcache, llamalane.errors", set()),
        ("import llamalane.cli", set()),
        ("from llamalane import Engine", {"anyio"}),
        ("from llamalane import BlockingEngine", {"anyio"}),
        ("from llamalane.scheduler import Engine, Changes, EngineStatistics", {"anyio"}),
        ("from llamalane import EngineConfig", CONFIGURATION),
        ("from llamalane.api import create_app", CONFIGURATION | {"fastapi", "prometheus_client", "starlette"}),
    ],
)
def test_an_import_loads_what_it_needs_and_nothing_else(statement: str, libraries: set[str]) -> None:
    loaded = {name.partition(".")[0] for name in loaded_by(statement)}
    assert "llamalane" in loaded
    assert loaded & HEAVY == libraries


def test_an_import_of_the_engine_loads_nothing_that_computes() -> None:
    loaded = loaded_by("from llamalane import Engine")
    assert "llamalane.scheduler.engine" in loaded
    computing = {name for name in loaded if name.startswith(("llamalane.streams.llama.", "llamalane.streams.cuda"))}
    assert computing == {"llamalane.streams.llama.library"}
    assert loaded.isdisjoint({"llamalane.scheduler.assembly", "llamalane.streams.lane", "llamalane.api"})


def test_an_import_of_the_engine_leaves_the_configuration_to_who_makes_one() -> None:
    configuration = {name for name in loaded_by("from llamalane import Engine") if ".scheduler.config" in name}
    assert configuration == {"llamalane.scheduler.config_roles"}  # which asks a configuration, whoever made it


def test_an_import_of_the_package_loads_nothing_else_of_it() -> None:
    assert {name for name in loaded_by("import llamalane") if name.startswith("llamalane")} == {"llamalane"}

"""Who imports whom: the rooms keep their order, and each foreign library has its home."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import pytest

from tests.architecture.modules import PACKAGE, Import, Module, imports_of, read_modules

LEAVES = frozenset({"errors", "ids", "clock"})
ROOT = ""
ROOMS = frozenset({"scheduler", "streams", "kvcache", "api", "bench", "cli"})

MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "kvcache": frozenset(),
    "streams": frozenset(),
    "scheduler": frozenset({"streams", "kvcache"}),
    "api": frozenset({"scheduler"}),
    "bench": ROOMS | {ROOT},
    "cli": ROOMS | {ROOT},
    "__main__": ROOMS | {ROOT},
    ROOT: ROOMS,  # it names what is public; that it loads a room only when asked is tested elsewhere
} | dict.fromkeys(LEAVES, frozenset())
"""The rooms that a room may import, besides itself and the leaves."""

HOMES: Mapping[str, tuple[str, ...]] = {
    "cuda": ("streams/cuda/",),
    "llama_cpp": ("streams/llama/", "bench/peers/thread_pool_server.py"),  # the latter stands for apps built on it
    "llguidance": ("streams/llama/",),
    "fastapi": ("api/", "cli", "bench/"),
    "fastapi_offline": ("api/",),
    "opentelemetry": ("api/",),
    "prometheus_client": ("api/", "bench/"),
    "starlette": ("api/", "cli", "bench/"),
    "uvicorn": ("api/", "cli", "bench/"),
    "xllamacpp": ("bench/",),
}
"""Where a library may be imported: files, or whatever starts so."""

STANDARD_LIBRARY_ONLY = frozenset({"kvcache"}) | LEAVES

MODULES = read_modules(PACKAGE)


def violations(module: Module) -> Iterator[str]:
    for found in module.imports:
        for complaint in _complaints(module, found):
            yield f"{module.path}:{found.line} {complaint}"


def _complaints(module: Module, found: Import) -> Iterator[str]:
    if found.relative:
        yield f"imports {found.name} relatively"
    elif found.name == "llamalane.__version__":
        return  # a plain string, for whoever wants to tell it
    elif found.top == "llamalane":
        name = found.name.removeprefix("llamalane").lstrip(".").partition(".")[0]
        target = name if name in ROOMS | LEAVES else ROOT
        if target not in MAY_IMPORT[module.room] | LEAVES | {module.room}:
            yield f"may not import {f'llamalane.{target}' if target else 'the root package'}"
    elif found.top in ROOMS:
        yield f"imports {found.top}, not llamalane.{found.top}"
    elif found.top in HOMES and not module.path.startswith(HOMES[found.top]):
        yield f"may not import {found.top}, whose home is {' or '.join(HOMES[found.top])}"
    elif module.room in STANDARD_LIBRARY_ONLY and found.top not in sys.stdlib_module_names:
        yield f"may import the standard library only, not {found.top}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.path)
def test_imports_keep_to_the_rules(module: Module) -> None:
    assert list(violations(module)) == []


def test_every_room_and_leaf_is_read() -> None:
    assert {module.room for module in MODULES} == MAY_IMPORT.keys()


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("streams/pool.py", "from llamalane.kvcache import Region", "may not import llamalane.kvcache"),
        ("kvcache/region.py", "import llamalane.streams.pool", "may not import llamalane.streams"),
        ("scheduler/loop.py", "from llamalane import api", "may not import llamalane.api"),
        ("api/app.py", "from llamalane.kvcache.region import Region", "may not import llamalane.kvcache"),
        ("errors.py", "from llamalane.scheduler import Engine", "may not import llamalane.scheduler"),
        ("scheduler/loop.py", "from llamalane import Engine", "may not import the root package"),
        ("clock.py", "import llamalane", "may not import the root package"),
        ("scheduler/loop.py", "from . import queue", "relatively"),
        ("scheduler/loop.py", "from .queue import Queue", "relatively"),
        ("scheduler/loop.py", "def late():\n    import cuda.core", "may not import cuda"),
        ("streams/lane.py", "from llama_cpp import llama_cpp", "may not import llama_cpp"),
        ("scheduler/engine.py", "from starlette.requests import Request", "may not import starlette"),
        ("kvcache/region.py", "import numpy as np", "standard library only"),
        ("api/app.py", "from scheduler import Engine", "not llamalane.scheduler"),
    ],
)
def test_a_broken_rule_is_found(path: str, source: str, complaint: str) -> None:
    (found,) = violations(Module(path, tuple(imports_of(source))))
    assert complaint in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("scheduler/loop.py", "from llamalane.streams import Lane\nfrom llamalane.kvcache import Region"),
        ("kvcache/region.py", "import heapq\nfrom llamalane.errors import PoolError"),
        ("streams/cuda/driver.py", "from cuda.bindings import driver"),
        ("streams/llama/library.py", "import llama_cpp"),
        ("api/app.py", "from fastapi import FastAPI\nfrom llamalane.scheduler import Engine"),
        ("api/app.py", "from llamalane import __version__"),
        ("__main__.py", "from llamalane.cli import main"),
        ("cli/serve.py", "import uvicorn\nfrom llamalane.api import create_app"),
        ("cli.py", "import uvicorn\nfrom llamalane import __version__"),
    ],
)
def test_what_the_rules_allow_passes(path: str, source: str) -> None:
    assert list(violations(Module(path, tuple(imports_of(source))))) == []

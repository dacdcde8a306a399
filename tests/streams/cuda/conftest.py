"""The stand-ins for CUDA's libraries, built once in a session, in seconds."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from llamalane.streams.cuda import load_shim
from tests.streams.cuda.machine import build

# While tests are collected, so before any of them loads llama.cpp: on a machine with a GPU its calls find the shim.
load_shim()


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the stand-ins are in."""
    if sys.platform != "linux":
        pytest.skip("streams are lent on Linux only")
    if importlib.util.find_spec("cuda") is None:
        pytest.skip("cuda-python is not installed")
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc to build the fake driver with")
    return build(tmp_path_factory.mktemp("fake-cuda"))

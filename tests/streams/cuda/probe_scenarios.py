"""What a look at CUDA finds on the fake driver, and where there is none."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from llamalane.streams.cuda import CudaState, probe
from tests.streams.cuda.machine import FakeMachine


def look() -> None:
    """Print what is found."""
    FakeMachine()
    found = probe()
    assert found.lends == (found.state is CudaState.USABLE)
    print(found.state.name)


def without_a_driver() -> None:
    # The linker's own cache may know a driver; an empty file of its name, which comes first, hides it.
    hidden = Path(os.environ["FAKE_LIBRARIES"]) / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "libcuda.so.1").touch()
    code = "from llamalane.streams.cuda import probe; print(probe().state.name)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_LIBRARY_PATH": str(hidden)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "NO_DRIVER\n"


def with_something_else_of_its_name() -> None:
    folder = Path(os.environ["FAKE_LIBRARIES"]) / "other"
    folder.mkdir(exist_ok=True)
    other = folder / "libcuda.so.1"
    subprocess.run(
        ["gcc", "-shared", "-o", other, "-Wl,-soname,libcuda.so.1", "-x", "c", "-"],
        input="int nothing;",
        text=True,
        check=True,
    )
    ctypes.CDLL(str(other))
    assert probe().state is CudaState.OLD_DRIVER


def with_a_shim_that_comes_too_late() -> None:
    machine = FakeMachine()
    machine.llama()
    found = probe()
    assert found.state is CudaState.SHIM_TOO_LATE
    assert (found.usable, found.lends, found.devices) == (True, False, 1)


def without_a_shim() -> None:
    FakeMachine(with_shim=False)
    found = probe()
    assert found.state is CudaState.NO_SHIM
    assert (found.usable, found.lends, found.devices) == (True, False, 1)


def with_a_llama_cpp_that_is_loaded_already() -> None:
    machine = FakeMachine()
    assert probe().state is CudaState.USABLE
    machine.llama()
    os.environ["LLAMA_CPP_LIB_PATH"] = "/nowhere"
    assert probe().state is CudaState.USABLE, "what is loaded counts"

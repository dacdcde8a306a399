"""A machine with fake GPUs, for one scenario in a process of its own: a loaded driver cannot be unloaded.

`build` compiles the stand-ins; `run_scenario` runs a function in a new process, and `FakeMachine` is what that function
gets hold of there.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llamalane.streams.cuda import Shim, ShimState, load_shim, shim

ROOT = Path(__file__).parents[3]
SOURCES = Path(__file__).parent
SHIM_SOURCE = ROOT / "streams" / "cuda" / "lend.c"
SHIM = "_lend.so"

_FOLDER = "FAKE_LIBRARIES"
_GCC = ("gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC")


def build(folder: Path) -> Path:
    """Compile the fake driver, the shim, a small runtime, and a small ggml linked with it in two ways."""
    runtime = folder / "libcudart.so.13"
    _compile(folder / "libcuda.so.1", SOURCES / "fake_driver.c", "-Wl,-soname,libcuda.so.1", "-ldl", "-lpthread")
    _compile(folder / SHIM, SHIM_SOURCE, "-ldl", "-lpthread")
    _compile(runtime, SOURCES / "mini_runtime.c", "-Wl,-soname,libcudart.so.13")
    _compile(folder / "libggml-cuda.so", SOURCES / "mini_ggml.c", str(runtime), "-Wl,-rpath,$ORIGIN")
    (folder / "static").mkdir()
    # With the runtime inside and its names bound there, as the static library of CUDA has it.
    static = (SOURCES / "mini_ggml.c", SOURCES / "mini_runtime.c")
    _compile(folder / "static" / "libggml-cuda.so", *static, "-Wl,-Bsymbolic")
    return folder


def _compile(target: Path, *arguments: Path | str) -> None:
    done = subprocess.run([*_GCC, "-o", target, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run_scenario(libraries: Path, scenario: Callable[[], None], **environment: object) -> str:
    """Run a module's function in a new process and return what it prints; what it raises fails the test."""
    name = scenario.__name__
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"from {scenario.__module__} import {name}; {name}()"],
        env={**os.environ, _FOLDER: str(libraries), **{key: str(value) for key, value in environment.items()}},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class FakeMachine:
    """The fake driver, loaded, and what can be loaded beside it."""

    def __init__(self, *, with_shim: bool = True) -> None:
        self.folder = Path(os.environ[_FOLDER])
        self.driver: Any = ctypes.CDLL(str(self.folder / "libcuda.so.1"))
        shim.find_shim = lambda: self.folder / SHIM if with_shim else None

    def alive(self, kind: str) -> int:
        """Count what the driver has of `"stream"` or `"green"` contexts."""
        return int(self.driver.fake_alive(kind.encode()))

    def fail(self, function: str, after: int, result: int = 2) -> None:
        """Let calls of a function fail after some that did not; 2 is out of memory."""
        self.driver.fake_fail(function.encode(), after, result)

    def priority(self, handle: int) -> int:
        """Return the priority of a stream."""
        return int(self.driver.fake_priority(ctypes.c_void_p(handle)))

    def device(self, handle: int) -> int:
        """Return the device of a stream."""
        return int(self.driver.fake_device(ctypes.c_void_p(handle)))

    def is_blocking(self, handle: int) -> bool:
        """Whether a stream waits for the legacy default stream."""
        return int(self.driver.fake_flags(ctypes.c_void_p(handle))) == 0

    def shim(self) -> Shim:
        """Load the shim before llama.cpp, as the engine does."""
        loaded = load_shim()
        assert loaded.state is ShimState.READY
        return loaded

    def llama(self, *, static: bool = False) -> MiniLlama:
        """Load what stands for llama.cpp."""
        return MiniLlama(self.folder / "static" if static else self.folder)


class MiniLlama:
    """Makes contexts that hold a stream on each of their devices."""

    def __init__(self, folder: Path) -> None:
        self._library: Any = ctypes.CDLL(str(folder / "libggml-cuda.so"))
        for function in ("mini_context", "mini_context_after_upload", "mini_stream"):
            getattr(self._library, function).restype = ctypes.c_void_p
        self._runtime: Any = self._library if folder.name == "static" else ctypes.CDLL(str(folder / "libcudart.so.13"))

    @property
    def own_streams(self) -> int:
        """How many streams the runtime has made itself."""
        return int(self._runtime.mini_runtime_alive())

    def context(self, device: int = 0, devices: int = 1) -> int:
        """Make a context on some devices."""
        return int(self._library.mini_context(device, devices))

    def context_after_upload(self, device: int = 0) -> int:
        """Make a context after a short use of a stream, as for an upload of weights."""
        return int(self._library.mini_context_after_upload(device))

    def stream(self, context: int, device: int = 0) -> int:
        """Return the stream that a context computes on."""
        return int(self._library.mini_stream(ctypes.c_void_p(context), device))

    def free(self, context: int) -> None:
        """Free a context."""
        self._library.mini_free(ctypes.c_void_p(context))

"""Whether CUDA can be used, and if not, why, and what to do about it."""

from __future__ import annotations

import enum
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llamalane.streams.cuda.shim import ShimState, is_loaded, load_shim

MINIMUM_DRIVER = 13000
"""The oldest driver that runs what the CUDA 13 bindings are made for, as `cuDriverGetVersion` counts: 13.0."""

_GGML_CUDA = "libggml-cuda"


class CudaState(enum.Enum):
    """What a look at CUDA found; each value says it in words, and `remedy` what to do."""

    USABLE = "usable"
    NO_BINDINGS = "cuda-python is not installed"
    NO_DRIVER = "no NVIDIA driver was found (libcuda.so.1 cannot be loaded)"
    OLD_DRIVER = "the NVIDIA driver is too old (CUDA 13.0 or newer is needed)"
    NO_DEVICE = "the NVIDIA driver sees no GPU"
    BROKEN = "the NVIDIA driver does not start"
    LLAMA_WITHOUT_CUDA = "llama.cpp was built without CUDA"
    NO_SHIM = "the shim that lends streams to llama.cpp was not built"
    SHIM_TOO_LATE = "llama.cpp was loaded before the shim that lends it streams"

    @property
    def remedy(self) -> str:
        """What to do; empty when there is nothing to do."""
        return _REMEDIES.get(self, "")


_REMEDIES: Mapping[CudaState, str] = {
    CudaState.NO_BINDINGS: "pip install cuda-python",
    CudaState.NO_DRIVER: "install NVIDIA's driver, version 580 or newer; in a container, start it with --gpus all",
    CudaState.OLD_DRIVER: "install NVIDIA's driver, version 580 or newer",
    CudaState.NO_DEVICE: "look at CUDA_VISIBLE_DEVICES, and whether nvidia-smi lists a GPU",
    CudaState.BROKEN: "run nvidia-smi; after an update of the driver, restart the machine",
    CudaState.LLAMA_WITHOUT_CUDA: (
        "build it with CUDA: CMAKE_ARGS=-DGGML_CUDA=on pip install --no-binary llama-cpp-python --force-reinstall "
        "--no-cache-dir --no-deps llama-cpp-python==0.3.36"
    ),
    CudaState.NO_SHIM: "install llamalane from source where there is a C compiler",
    CudaState.SHIM_TOO_LATE: (
        "import llama_cpp after the engine has been made, or start the process with LD_PRELOAD set to the path that "
        "`llamalane doctor` tells"
    ),
}

_LENDS_NOT = (CudaState.NO_SHIM, CudaState.SHIM_TOO_LATE)


@dataclass(frozen=True, slots=True)
class CudaProbe:
    """The state, what the driver said, and how many devices it has."""

    state: CudaState
    detail: str = ""
    devices: int = 0

    @property
    def usable(self) -> bool:
        """Whether llama.cpp can use a GPU, if only on streams of its own."""
        return self.state is CudaState.USABLE or self.state in _LENDS_NOT

    @property
    def lends(self) -> bool:
        """Whether llama.cpp can be lent the pool's streams, as far as can be told before it has made a context."""
        return self.state is CudaState.USABLE

    @property
    def reason(self) -> str:
        """The state in words, with the driver's own."""
        return f"{self.state.value}: {self.detail}" if self.detail else self.state.value


def probe() -> CudaProbe:
    """Look for a usable CUDA device. Never raises.

    It loads the shim where llama.cpp can use CUDA, and so should come before llama.cpp is loaded.
    """
    shim = load_shim() if llama_has_cuda() else None
    try:
        from cuda.bindings import driver  # noqa: PLC0415
    except ImportError as error:
        return CudaProbe(CudaState.NO_BINDINGS, str(error))
    try:
        found = _ask(driver)
    except RuntimeError as error:
        # The bindings look up the driver's functions at the first call; before 12.0 this one is missing.
        if "cuGetProcAddress" in str(error):
            return CudaProbe(CudaState.OLD_DRIVER, str(error))
        return CudaProbe(CudaState.NO_DRIVER)
    except Exception as error:  # whatever a broken installation brings forth
        return CudaProbe(CudaState.BROKEN, f"{type(error).__name__}: {error}")
    if not found.usable:
        return found
    if shim is None:
        return CudaProbe(CudaState.LLAMA_WITHOUT_CUDA, devices=found.devices)
    if shim.state is ShimState.NOT_BUILT:
        return CudaProbe(CudaState.NO_SHIM, devices=found.devices)
    if shim.state is ShimState.TOO_LATE:
        return CudaProbe(CudaState.SHIM_TOO_LATE, devices=found.devices)
    return found


def llama_has_cuda() -> bool:
    """Whether the llama.cpp that is loaded, or else the one that would be, can use CUDA."""
    if is_loaded(_GGML_CUDA):
        return True
    if is_loaded("libllama.so"):
        return False
    folder = os.environ.get("LLAMA_CPP_LIB_PATH")
    if folder is None:
        package = importlib.util.find_spec("llama_cpp")
        if package is None or not package.submodule_search_locations:
            return False
        folder = f"{next(iter(package.submodule_search_locations))}/lib"
    return any(Path(folder).glob(f"{_GGML_CUDA}*"))


def _ask(driver: Any) -> CudaProbe:
    success = driver.CUresult.CUDA_SUCCESS
    (error,) = driver.cuInit(0)
    if error == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        return CudaProbe(CudaState.NO_DEVICE)
    if error != success:
        return CudaProbe(CudaState.BROKEN, error.name)
    error, version = driver.cuDriverGetVersion()
    if error != success:
        return CudaProbe(CudaState.BROKEN, error.name)
    if version < MINIMUM_DRIVER:
        return CudaProbe(CudaState.OLD_DRIVER, f"it supports CUDA {version // 1000}.{version % 1000 // 10}")
    error, count = driver.cuDeviceGetCount()
    if error != success:
        return CudaProbe(CudaState.BROKEN, error.name)
    if count == 0:
        return CudaProbe(CudaState.NO_DEVICE)
    return CudaProbe(CudaState.USABLE, devices=count)

"""Whether CUDA can be used, and if not, why. The only module that knows CUDA, which it imports when asked."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

MINIMUM_DRIVER = 13000
"""The oldest driver that runs what the CUDA 13 bindings are made for, as `cuDriverGetVersion` counts: 13.0."""


class CudaState(enum.Enum):
    """What a look at CUDA found; each value says it in words."""

    USABLE = "usable"
    NO_BINDINGS = "cuda-python is not installed (pip install cuda-python)"
    NO_DRIVER = "no NVIDIA driver was found (libcuda.so.1 cannot be loaded)"
    OLD_DRIVER = "the NVIDIA driver is too old (CUDA 13.0 or newer is needed)"
    NO_DEVICE = "the NVIDIA driver sees no GPU"
    BROKEN = "the NVIDIA driver does not start"


@dataclass(frozen=True, slots=True)
class CudaProbe:
    """The state, what the driver said, and how many devices it has."""

    state: CudaState
    detail: str = ""
    devices: int = 0

    @property
    def usable(self) -> bool:
        """Whether at least one device can be used."""
        return self.state is CudaState.USABLE

    @property
    def reason(self) -> str:
        """The state in words, with the driver's own."""
        return f"{self.state.value}: {self.detail}" if self.detail else self.state.value


def probe() -> CudaProbe:
    """Look for a usable CUDA device. Never raises."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415
    except ImportError as error:
        return CudaProbe(CudaState.NO_BINDINGS, str(error))
    try:
        return _ask(driver)
    except RuntimeError as error:
        # The bindings look up the driver's functions at the first call; before 12.0 this one is missing.
        if "cuGetProcAddress" in str(error):
            return CudaProbe(CudaState.OLD_DRIVER, str(error))
        return CudaProbe(CudaState.NO_DRIVER)


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

from __future__ import annotations

import enum
import importlib.util
import subprocess
import sys
from types import ModuleType

import pytest

from llamalane.streams.cuda import MINIMUM_DRIVER, CudaProbe, CudaState, probe


class Result(enum.Enum):
    """The results of the CUDA driver that matter here, as the bindings name them."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_UNKNOWN = 999


class Driver(ModuleType):
    """A driver that answers as it was told; a call may raise instead."""

    CUresult = Result

    def __init__(
        self,
        *,
        init: Result | Exception = Result.CUDA_SUCCESS,
        version: tuple[Result, int] = (Result.CUDA_SUCCESS, MINIMUM_DRIVER),
        count: tuple[Result, int] = (Result.CUDA_SUCCESS, 2),
    ) -> None:
        super().__init__("cuda.bindings.driver")
        self._init = init
        self._version = version
        self._count = count

    def cuInit(self, flags: int) -> tuple[Result]:  # noqa: N802
        assert flags == 0
        if isinstance(self._init, Exception):
            raise self._init
        return (self._init,)

    def cuDriverGetVersion(self) -> tuple[Result, int]:  # noqa: N802
        return self._version

    def cuDeviceGetCount(self) -> tuple[Result, int]:  # noqa: N802
        return self._count


def probe_with(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> CudaProbe:
    cuda, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    cuda.bindings, bindings.driver = bindings, driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", cuda)
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    return probe()


def test_a_device_and_a_new_driver_are_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probe_with(monkeypatch, Driver())
    assert found == CudaProbe(CudaState.USABLE, devices=2)
    assert found.usable


def test_missing_bindings_are_told_with_the_way_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "cuda.bindings"):  # as if it were not installed
        monkeypatch.setitem(sys.modules, name, None)
    found = probe()
    assert found.state is CudaState.NO_BINDINGS
    assert "pip install cuda-python" in found.reason


@pytest.mark.parametrize(
    ("driver", "state", "detail"),
    [
        (Driver(init=RuntimeError("Failed to dlopen libcuda.so.1")), CudaState.NO_DRIVER, "libcuda"),
        (Driver(init=RuntimeError("no cuGetProcAddress_v2")), CudaState.OLD_DRIVER, "cuGetProcAddress"),
        (Driver(init=Result.CUDA_ERROR_NO_DEVICE), CudaState.NO_DEVICE, "no GPU"),
        (Driver(init=Result.CUDA_ERROR_UNKNOWN), CudaState.BROKEN, "CUDA_ERROR_UNKNOWN"),
        (Driver(version=(Result.CUDA_ERROR_UNKNOWN, 0)), CudaState.BROKEN, "CUDA_ERROR_UNKNOWN"),
        (Driver(version=(Result.CUDA_SUCCESS, 12040)), CudaState.OLD_DRIVER, "it supports CUDA 12.4"),
        (Driver(count=(Result.CUDA_SUCCESS, 0)), CudaState.NO_DEVICE, "no GPU"),
        (Driver(count=(Result.CUDA_ERROR_UNKNOWN, 0)), CudaState.BROKEN, "CUDA_ERROR_UNKNOWN"),
    ],
)
def test_what_is_wrong_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, state: CudaState, detail: str
) -> None:
    found = probe_with(monkeypatch, driver)
    assert found.state is state
    assert not found.usable
    assert detail in found.reason


def test_this_machine_is_looked_at_without_raising() -> None:
    # In a process of its own: a loaded driver cannot be unloaded.
    code = "from llamalane.streams.cuda import probe; found = probe(); print(found.state.name, found.devices)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    state, devices = run.stdout.split()
    if importlib.util.find_spec("cuda") is None:
        assert state == "NO_BINDINGS"
    assert (int(devices) > 0) == (state == "USABLE")

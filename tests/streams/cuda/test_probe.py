"""Detection: what is wrong is told apart, with a remedy each."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from llamalane.streams.cuda import MINIMUM_DRIVER, CudaProbe, CudaState, probe
from tests.streams.cuda import probe_scenarios as scenarios
from tests.streams.cuda.machine import run_scenario


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


@pytest.mark.parametrize("state", list(CudaState))
def test_every_state_but_one_has_a_remedy(state: CudaState) -> None:
    assert bool(state.remedy) == (state is not CudaState.USABLE)


def test_missing_bindings_are_told_with_the_way_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "cuda.bindings"):  # as if it were not installed
        monkeypatch.setitem(sys.modules, name, None)
    found = probe()
    assert found.state is CudaState.NO_BINDINGS
    assert "pip install cuda-python" in found.state.remedy


@pytest.mark.parametrize(
    ("driver", "state", "detail"),
    [
        (Driver(init=RuntimeError("Failed to dlopen libcuda.so.1")), CudaState.NO_DRIVER, "libcuda"),
        (Driver(init=RuntimeError("no cuGetProcAddress_v2")), CudaState.OLD_DRIVER, "cuGetProcAddress"),
        (Driver(init=Result.CUDA_ERROR_NO_DEVICE), CudaState.NO_DEVICE, "no GPU"),
        (Driver(init=Result.CUDA_ERROR_UNKNOWN), CudaState.BROKEN, "CUDA_ERROR_UNKNOWN"),
        (Driver(init=OSError("a broken installation")), CudaState.BROKEN, "OSError: a broken installation"),
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
    code = "from llamalane.streams.cuda import probe; found = probe(); print(found.state.name, found.usable)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    state, usable = run.stdout.split()
    assert usable == str(CudaState[state] in (CudaState.USABLE, CudaState.NO_SHIM, CudaState.SHIM_TOO_LATE))


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        ({}, CudaState.USABLE),
        ({"FAKE_DEVICES": 0}, CudaState.NO_DEVICE),
        ({"FAKE_DRIVER": 12040}, CudaState.OLD_DRIVER),
        ({"FAKE_INIT": 803}, CudaState.BROKEN),
        ({"LLAMA_CPP_LIB_PATH": "/nowhere"}, CudaState.LLAMA_WITHOUT_CUDA),
    ],
    ids=lambda value: value.name if isinstance(value, CudaState) else "",
)
def test_fake_driver(libraries: Path, environment: Mapping[str, object], state: CudaState) -> None:
    said = run_scenario(libraries, scenarios.look, **{"LLAMA_CPP_LIB_PATH": libraries, **environment})
    assert said == f"{state.name}\n"


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.without_a_driver,
        scenarios.with_something_else_of_its_name,
        scenarios.with_a_shim_that_comes_too_late,
        scenarios.without_a_shim,
        scenarios.with_a_llama_cpp_that_is_loaded_already,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_fake_driver_where_it_is_found_out(libraries: Path, scenario: Callable[[], None]) -> None:
    run_scenario(libraries, scenario, LLAMA_CPP_LIB_PATH=libraries)

"""Calls of the CUDA driver, by way of cuda-python, which is imported when the first one is made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llamalane.errors import CudaError, DeviceUnavailableError, LlamalaneError


@dataclass(frozen=True, slots=True)
class PriorityRange:
    """The priorities that streams of a device can have. A lower number is more urgent; 0 is the least urgent."""

    least: int
    greatest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    """A GPU, as its driver describes it.

    Attributes:
        index: its number for CUDA, which `CUDA_VISIBLE_DEVICES` may have changed.
        compute_capability: such as `(9, 0)`.
        memory: its memory in bytes.
        free: how much of that nobody uses, in bytes.
    """

    index: int
    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory: int
    free: int
    priorities: PriorityRange


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the CUDA driver and return what it gives back; raises `CudaError` when it fails."""
    from cuda.bindings import driver  # noqa: PLC0415

    with translated(name):
        error, *values = getattr(driver, name)(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(name, error.name)
    return values[0] if len(values) == 1 else tuple(values)


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise what cuda-python raises as `CudaError`. Its own error for the driver's codes is not public."""
    try:
        yield
    except LlamalaneError:
        raise
    except Exception as error:
        raise CudaError(what, str(error).strip() or type(error).__name__) from error


@contextlib.contextmanager
def current_device(index: int) -> Iterator[Any]:
    """Make a GPU the calling thread's current one, and what was current before again in the end.

    Gives the `cuda.core.Device`. Raises `DeviceUnavailableError` when there is no such GPU. Its primary context, which
    llama.cpp uses as well, is created when it is not there yet; that takes some 0.2 s and 0.5 GB of its memory.
    """
    from cuda.core import Device  # noqa: PLC0415

    count = device_count()
    if not 0 <= index < count:
        there = f"GPUs go from 0 to {count - 1}" if count else "there is no GPU"
        raise DeviceUnavailableError(f"cuda:{index}", there)
    before = call("cuCtxGetCurrent")
    with translated(f"to use GPU {index}"):
        device = Device(index)
        device.set_current()
    try:
        yield device
    finally:
        call("cuCtxSetCurrent", before)


def device_count() -> int:
    """Return how many GPUs the driver shows."""
    call("cuInit", 0)
    return int(call("cuDeviceGetCount"))


def priority_range() -> PriorityRange:
    """Return the priorities that streams of the current device can have."""
    return PriorityRange(*call("cuCtxGetStreamPriorityRange"))


def free_memory(device: int) -> int:
    """Return how many bytes of a GPU's memory nobody uses; raises `CudaError` or `DeviceUnavailableError`."""
    with current_device(device):
        free, _total = call("cuMemGetInfo")
    return int(free)


def describe(index: int) -> GPU:
    """Return what the driver says of a GPU; raises `CudaError` or `DeviceUnavailableError`."""
    with current_device(index) as device, translated(f"to describe GPU {index}"):
        free, total = call("cuMemGetInfo")
        capability = device.compute_capability
        return GPU(
            index=index,
            name=device.name,
            compute_capability=(capability.major, capability.minor),
            multiprocessors=device.properties.multiprocessor_count,
            memory=int(total),
            free=int(free),
            priorities=priority_range(),
        )

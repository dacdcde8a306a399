"""The GPUs that llama.cpp can use, by number."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from llamalane.errors import DeviceUnavailableError
from llamalane.streams.llama.library import library

_DISCRETE, _INTEGRATED = 1, 2  # ggml-backend.h: ggml_backend_dev_type


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of llama.cpp's.

    Attributes:
        name: what llama.cpp calls it, such as `CUDA0`.
        description: what it is, such as `NVIDIA H200`.
        pointer: its `ggml_backend_dev_t`.
    """

    name: str
    description: str
    pointer: int


def find_gpu(number: int) -> Gpu:
    """Return the GPU that CUDA gives this number, counted from 0; of other makes, the one at this place of the list.

    Raises `DeviceUnavailableError` when llama.cpp has none.
    """
    gpus = _list_gpus()
    # llama.cpp names CUDA's devices by CUDA's own numbers, which the driver shares; `CUDA_VISIBLE_DEVICES` changes them
    # for both alike. The place in llama.cpp's list can be another one: servers that compute for it come first.
    nvidia = {gpu.name: gpu for gpu in gpus if gpu.name.startswith("CUDA")}
    found = nvidia.get(f"CUDA{number}") if nvidia else next(iter(gpus[number : number + 1]), None)
    if found is None:
        there = f"it has {', '.join(gpu.name for gpu in gpus)}" if gpus else "it can use none"
        raise DeviceUnavailableError(f"GPU {number}", f"llama.cpp has no such GPU: {there}")
    return found


def _list_gpus() -> list[Gpu]:
    """List the GPUs as llama.cpp does: integrated ones count where there are no others."""
    ggml = _functions()
    devices = [ggml.ggml_backend_dev_get(index) for index in range(ggml.ggml_backend_dev_count())]
    kinds = {device: ggml.ggml_backend_dev_type(device) for device in devices}
    wanted = _DISCRETE if _DISCRETE in kinds.values() else _INTEGRATED
    return [
        Gpu(
            ggml.ggml_backend_dev_name(device).decode(),
            ggml.ggml_backend_dev_description(device).decode(errors="replace"),
            device,
        )
        for device in devices
        if kinds[device] == wanted
    ]


def _functions() -> Any:
    """Return ggml's functions, which llama-cpp-python does not bind, from the library that llama.cpp itself uses."""
    ggml = library().api._lib
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    for name, result in (("type", ctypes.c_int), ("name", ctypes.c_char_p), ("description", ctypes.c_char_p)):
        function = getattr(ggml, f"ggml_backend_dev_{name}")
        function.argtypes, function.restype = [ctypes.c_void_p], result
    return ggml

"""llama.cpp's CPU in the place of GPUs: models that are told to use one are really loaded, and compute."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llamalane.errors import DeviceUnavailableError
from llamalane.streams.llama import gpus, model
from llamalane.streams.llama.gpus import Gpu
from llamalane.streams.llama.library import Library


def cpu_as_gpu(number: int, description: str = "CPU as a GPU") -> Gpu:
    """Return the CPU as a GPU of that number."""
    ggml = gpus._functions()
    devices = [ggml.ggml_backend_dev_get(index) for index in range(ggml.ggml_backend_dev_count())]
    cpu = next(device for device in devices if ggml.ggml_backend_dev_name(device) == b"CPU")
    return Gpu(f"CUDA{number}", description, cpu)


def as_if_there_were(monkeypatch: pytest.MonkeyPatch, descriptions: Sequence[str]) -> None:
    """Let llama.cpp say that it can use a GPU for each description."""

    def find_gpu(number: int) -> Gpu:
        if number >= len(descriptions):
            raise DeviceUnavailableError(f"GPU {number}", "llama.cpp has no such GPU")
        return cpu_as_gpu(number, descriptions[number])

    monkeypatch.setattr(Library, "supports_gpu_offload", True)
    monkeypatch.setattr(model, "find_gpu", find_gpu)

"""Which of llama.cpp's devices is meant by a number, and models that keep to one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from llamalane.errors import DeviceUnavailableError
from llamalane.streams.llama import Context, Model, ModelOptions, gpus, model
from llamalane.streams.llama.gpus import find_gpu
from llamalane.streams.llama.library import library
from tests.streams.llama.conftest import OPTIONS
from tests.streams.llama.cpu_as_gpu import cpu_as_gpu

CPU, GPU, INTEGRATED, ACCELERATOR = range(4)


class Devices:
    """ggml's list of devices, as its functions tell of it."""

    def __init__(self, devices: Sequence[tuple[str, int]]) -> None:
        self._devices = devices

    def ggml_backend_dev_count(self) -> int:
        return len(self._devices)

    def ggml_backend_dev_get(self, index: int) -> int:
        return 1000 + index

    def ggml_backend_dev_name(self, device: int) -> bytes:
        return self._devices[device - 1000][0].encode()

    def ggml_backend_dev_description(self, device: int) -> bytes:
        return b"a " + self.ggml_backend_dev_name(device)

    def ggml_backend_dev_type(self, device: int) -> int:
        return self._devices[device - 1000][1]


@pytest.mark.parametrize(
    ("devices", "number", "name"),
    [
        ([("CUDA0", GPU), ("CUDA1", GPU), ("CPU", CPU)], 1, "CUDA1"),
        # A server that computes for llama.cpp is a device too, and stands before those of this machine.
        ([("RPC0", GPU), ("CUDA0", GPU), ("CUDA1", GPU), ("CPU", CPU)], 1, "CUDA1"),
        ([("CUDA0", GPU), ("CUDA1", GPU), ("Vulkan0", GPU), ("CPU", CPU)], 0, "CUDA0"),
        ([("BLAS", ACCELERATOR), ("Vulkan0", GPU), ("Vulkan1", GPU), ("CPU", CPU)], 1, "Vulkan1"),
        ([("Vulkan0", INTEGRATED), ("Vulkan1", GPU), ("CPU", CPU)], 0, "Vulkan1"),
        ([("CUDA0", INTEGRATED), ("CPU", CPU)], 0, "CUDA0"),
    ],
)
def test_a_number_is_the_one_that_cuda_gives(
    monkeypatch: pytest.MonkeyPatch, devices: list[tuple[str, int]], number: int, name: str
) -> None:
    monkeypatch.setattr(gpus, "_functions", lambda: Devices(devices))
    found = find_gpu(number)
    assert (found.name, found.description) == (name, f"a {name}")
    assert found.pointer == 1000 + [device for device, _ in devices].index(name)


@pytest.mark.parametrize(
    ("devices", "number", "there"),
    [
        ([("CUDA0", GPU), ("CUDA1", GPU), ("CPU", CPU)], 2, "it has CUDA0, CUDA1"),
        ([("CUDA0", GPU), ("Vulkan0", GPU), ("CPU", CPU)], 1, "it has CUDA0, Vulkan0"),
        ([("Vulkan0", GPU), ("CPU", CPU)], 1, "it has Vulkan0"),
        ([("BLAS", ACCELERATOR), ("CPU", CPU)], 0, "it can use none"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, devices: list[tuple[str, int]], number: int, there: str
) -> None:
    monkeypatch.setattr(gpus, "_functions", lambda: Devices(devices))
    with pytest.raises(DeviceUnavailableError, match=f"^device 'GPU {number}' cannot be used: .*: {there}$"):
        find_gpu(number)


def test_a_model_is_not_put_on_a_gpu_that_llama_cpp_does_not_have(tiny_model: Path) -> None:
    if library().supports_gpu_offload:
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceUnavailableError, match="it can use none"):
        Model(ModelOptions(path=tiny_model, device=0))


def test_a_model_keeps_to_the_device_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model, "find_gpu", cpu_as_gpu)
    with caplog.at_level(logging.DEBUG, "llamalane.llama"):
        with Model(ModelOptions(path=tiny_model, gpu_layers=-1, device=3)) as loaded:
            assert loaded.gpu == "CPU as a GPU"
            Context(loaded, OPTIONS).close()
        assert caplog.text.count("using device CPU ") == 1
        caplog.clear()
        with Model(ModelOptions(path=tiny_model, gpu_layers=-1)) as loaded:
            assert loaded.gpu == ""
        assert "using device CPU " not in caplog.text

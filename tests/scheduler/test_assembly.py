"""What is built where, on a machine with several GPUs; in their place stands llama.cpp's CPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from llamalane.errors import DeviceUnavailableError
from llamalane.scheduler import EngineConfig, assembly
from llamalane.scheduler.assembly import Machinery, assemble, plan
from llamalane.streams import Device
from llamalane.streams.lane import Lane, StepContext
from llamalane.streams.llama import Context, ContextOptions, Model
from tests.streams.llama.cpu_as_gpu import as_if_there_were

GPUS = ("NVIDIA H200", "NVIDIA L4", "NVIDIA L4", "NVIDIA L4")


@pytest.fixture
def several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_there_were(monkeypatch, GPUS)
    monkeypatch.setattr(assembly, "available_cores", lambda: range(8))


class Opened:
    """Opens contexts, and keeps on which GPU each one's model is, and each model."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.devices: list[int | None] = []
        self.models: list[Model] = []
        self._fail_at = fail_at

    def __call__(self, model: Model, options: ContextOptions) -> StepContext:
        self.devices.append(model.options.device)
        if model not in self.models:
            self.models.append(model)
        if len(self.devices) == self._fail_at:
            raise MemoryError("no room for it")
        return Context(model, options)


def config_of(path: Path, *lanes: dict[str, Any], device: str = "auto") -> EngineConfig:
    each = [{"name": f"lane-{number}", "places": 2, "threads": 1} | lane for number, lane in enumerate(lanes)]
    return EngineConfig.model_validate(
        {
            "models": [{"path": path}],
            "streams": {"device": device, "lanes": each},
            "kv": {"budget": 256 * 2 * len(lanes)},
        }
    )


@pytest.fixture
def machines() -> Iterator[list[Machinery]]:
    """What the test has assembled; closed at its end."""
    machines: list[Machinery] = []
    yield machines
    for machinery in machines:
        machinery.close()
        assert all(one._pointer is None for one in machinery.models)


def built(machines: list[Machinery], config: EngineConfig, opened: Opened) -> Machinery:
    async def build() -> Machinery:
        return assemble(config, opened)

    machines.append(anyio.run(build))  # the pool's semaphore wants an event loop
    return machines[-1]


def gates(machinery: Machinery) -> list[object]:
    backends = [lane.backend for lane in machinery.pool.lanes]
    return [backend._gate for backend in backends if isinstance(backend, Lane)]


@pytest.mark.usefixtures("several_gpus")
def test_each_gpu_that_lanes_name_has_one_model_and_one_gate(tiny_model: Path, machines: list[Machinery]) -> None:
    opened = Opened()
    config = config_of(tiny_model, {"device": 2}, {"device": 0}, {"device": 2}, {"device": 3})
    machinery = built(machines, config, opened)
    assert opened.devices == [2, 0, 2, 3]
    assert opened.models == list(machinery.models)
    assert [model.options.device for model in machinery.models] == [2, 0, 3]
    first, second, third, fourth = gates(machinery)
    assert first is third
    assert len({id(first), id(second), id(fourth)}) == 3
    assert [lane.stream.options.gpu for lane in machinery.pool.lanes] == [GPUS[number] for number in (2, 0, 2, 3)]


@pytest.mark.usefixtures("several_gpus")
def test_lanes_that_name_no_gpu_take_the_first_beside_those_that_do(
    tiny_model: Path, machines: list[Machinery]
) -> None:
    opened = Opened()
    machinery = built(machines, config_of(tiny_model, {}, {"device": 1}, {"device": 0}), opened)
    assert opened.devices == [0, 1, 0]
    assert len(machinery.models) == 2


@pytest.mark.usefixtures("several_gpus")
def test_if_no_lane_names_a_gpu_llama_cpp_spreads_one_model(tiny_model: Path, machines: list[Machinery]) -> None:
    opened = Opened()
    machinery = built(machines, config_of(tiny_model, {}, {}), opened)
    assert opened.devices == [None, None]
    assert len(machinery.models) == len(set(map(id, gates(machinery)))) == 1
    assert [lane.stream.options.gpu for lane in machinery.pool.lanes] == ["", ""]
    assert machinery.pool.lanes[0].stream.options.device is Device.GPU


@pytest.mark.usefixtures("several_gpus")
def test_on_the_cpu_it_makes_no_difference_which_gpu_a_lane_names(tiny_model: Path, machines: list[Machinery]) -> None:
    opened = Opened()
    machinery = built(machines, config_of(tiny_model, {"device": 7}, {"device": 1}, device="cpu"), opened)
    assert opened.devices == [None, None]
    assert len(machinery.models) == 1


@pytest.mark.usefixtures("several_gpus")
def test_a_lanes_speed_reaches_its_stream(tiny_model: Path, machines: list[Machinery]) -> None:
    machinery = built(machines, config_of(tiny_model, {"device": 0, "speed": 2.5}, {"device": 1}), Opened())
    assert [lane.stream.options.speed for lane in machinery.pool.lanes] == [2.5, 1.0]


@pytest.mark.usefixtures("several_gpus")
def test_what_was_loaded_is_freed_when_a_later_lane_cannot_be_opened(tiny_model: Path) -> None:
    opened = Opened(fail_at=3)
    config = config_of(tiny_model, {"device": 0}, {"device": 1}, {"device": 2})
    with pytest.raises(MemoryError):
        built([], config, opened)
    assert [model._pointer for model in opened.models] == [None] * 3


@pytest.mark.usefixtures("several_gpus")
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_opened(tiny_model: Path) -> None:
    opened = Opened()
    with pytest.raises(DeviceUnavailableError, match="'GPU 4'"):
        built([], config_of(tiny_model, {"device": 1}, {"device": 4}), opened)
    assert not opened.devices


@pytest.mark.usefixtures("several_gpus")
def test_a_plan_has_each_device_with_its_lanes(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = plan(config_of(tiny_model, {"device": 2}, {"device": 0}, {"device": 2}))
    assert [(device.name, device.lanes) for device in memory.devices] == [
        ("GPU 2", ("lane-0", "lane-2")),
        ("GPU 0", ("lane-1",)),
    ]
    assert [lane.name for lane in memory.lanes] == ["lane-0", "lane-1", "lane-2"]
    two, one = memory.devices
    assert two.weights == one.weights > 0
    assert two.kv == 2 * one.kv > 0
    assert (memory.name, memory.weights, memory.kv) == ("2 GPUs", 2 * one.weights, 3 * one.kv)
    with caplog.at_level(logging.INFO, "llamalane.scheduler"):
        memory.log()
    assert "on the GPU 2, where unknown is free" in caplog.text

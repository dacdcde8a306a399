"""Which models are loaded where: what lanes of one device and one file have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llamalane.scheduler.config import EngineConfig, LaneConfig, ModelConfig, StreamsConfig
from llamalane.streams import Device
from llamalane.streams.gate import Gate
from llamalane.streams.llama import Model, ModelOptions


@dataclass(frozen=True, slots=True)
class Home:
    """What a lane computes: the model as it is on its device, and the gate at which contexts come and go there."""

    model: Model
    gate: Gate


def model_options(entry: ModelConfig, device: Device, gpu: int | None, *, weights: bool = True) -> ModelOptions:
    """Return how a model is loaded for the lanes of a device; entries with equal ones share what is loaded."""
    layers = entry.gpu_layers if device is Device.GPU else 0
    return ModelOptions(path=entry.path, gpu_layers=layers, mmap=entry.mmap, weights=weights, device=gpu)


def gpus_of(config: StreamsConfig, device: Device) -> dict[str, int | None]:
    """Return the GPU of each lane, by its name; None where no lane names a GPU, or there is none."""
    gpus = config.gpus if device is Device.GPU else [None] * len(config.lanes)
    return dict(zip([lane.name for lane in config.lanes], gpus, strict=True))


def lanes_by_gpu(gpus: Mapping[str, int | None], lanes: Sequence[LaneConfig]) -> dict[int | None, tuple[str, ...]]:
    """Return the names of those of `lanes` that are on each GPU."""
    names = [lane.name for lane in lanes]
    return {
        gpu: tuple(name for name in names if gpus[name] == gpu) for gpu in dict.fromkeys(gpus[name] for name in names)
    }


def load_homes(
    config: EngineConfig, device: Device, gpus: Mapping[str, int | None], undo: contextlib.ExitStack
) -> dict[str, Home]:
    """Load the models of all lanes, and return the home of each lane by its name; `undo` frees them."""
    gates: dict[int | None, Gate] = {}
    models: dict[ModelOptions, Model] = {}
    homes: dict[str, Home] = {}
    for lane in config.streams.lanes:
        gpu = gpus[lane.name]
        options = model_options(config.model_of(lane), device, gpu)
        if options not in models:
            models[options] = Model(options)
            undo.callback(models[options].close)
        homes[lane.name] = Home(models[options], gates.setdefault(gpu, Gate()))
    return homes

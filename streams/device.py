"""Chooses the device that a model runs on."""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING

from llamalane.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from llamalane.streams.cuda import CudaProbe

logger = logging.getLogger(__name__)


class Device(enum.Enum):
    """Where a lane computes."""

    CPU = "cpu"
    GPU = "gpu"
    """Whatever GPU this build of llama.cpp offloads to: CUDA, Metal, Vulkan."""


class DeviceChoice(enum.Enum):
    """What the configuration may ask for."""

    AUTO = "auto"
    CUDA = "cuda"
    CPU = "cpu"


def choose_device(choice: DeviceChoice, *, offload: bool, probe: CudaProbe) -> Device:
    """Return the device to use.

    `offload` tells whether this build of llama.cpp can use a GPU. `auto` takes a GPU if it can and logs why it took
    what it took. `cuda` without a usable GPU raises `DeviceUnavailableError` with the reason.
    """
    if choice is DeviceChoice.CPU:
        return Device.CPU
    if choice is DeviceChoice.CUDA:
        if not probe.usable:
            raise DeviceUnavailableError("cuda", f"{probe.reason}; {probe.state.remedy}")
        if not offload:
            raise DeviceUnavailableError("cuda", "llama.cpp finds no GPU, though the driver shows one")
        return Device.GPU
    if offload:
        logger.info("device auto: GPU, since this build of llama.cpp can offload to one")
        return Device.GPU
    logger.info("device auto: CPU, since this build of llama.cpp cannot offload to a GPU (CUDA: %s)", probe.reason)
    return Device.CPU

"""What a configuration takes of its devices' memory, in numbers and in words."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamalane.kvcache.budget import Layout, RegionPlan
from llamalane.streams import Device

if TYPE_CHECKING:
    from llamalane.scheduler.embedding_plan import EmbeddingPlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """What one lane takes, in bytes.

    Attributes:
        cells: its KV cells.
        states: what a recurrent model keeps for the lane's sequences.
        computing: what its steps work in, as llama.cpp says.
        host_computing: the same of the host's memory, where that is not the device's.
        measured: whether that is what llama.cpp says of this very lane; else of one with fewer cells or sequences,
            and it may be more.
    """

    name: str
    region: RegionPlan
    cells: int
    states: int
    computing: int
    host_computing: int = 0
    measured: bool = True

    def fitting(self, length: int) -> int:
        """Return how many sequences of `length` tokens can run at once."""
        if length > self.region.limit:
            return 0
        if self.region.layout is Layout.PARTITIONED:
            return self.region.places
        return min(self.region.places, self.region.cells // length)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """What one device's lanes take of its memory, in bytes.

    Attributes:
        name: such as `CPU`, `GPU 1`, or `GPU` where llama.cpp spreads the model over all of them.
        lanes: their names.
        weights: those of the model.
        kv: what the lanes' cells and states take.
        offloaded: which part of both is on the device: 1, unless only some layers go to a GPU.
        computing: what the lanes' steps work in, on the device.
        free: what is free before anything is loaded; None if nobody knows.
        embedding: what models that embed or rerank take there, weights and lanes together.
    """

    name: str
    lanes: tuple[str, ...]
    weights: int
    kv: int
    offloaded: float
    computing: int
    free: int | None
    embedding: int = 0

    @property
    def needed(self) -> int:
        """What is taken from the start."""
        return round((self.weights + self.kv) * self.offloaded) + self.computing + self.embedding

    @property
    def missing(self) -> int:
        """How much more is needed than is free."""
        return max(self.needed - self.free, 0) if self.free is not None else 0

    def summary(self) -> str:
        """Return one line of what is taken and what is free."""
        free = "unknown" if self.free is None else in_words(self.free)
        embedding = f" + embedding {in_words(self.embedding)}" if self.embedding else ""
        return (
            f"weights {in_words(self.weights)} + KV {in_words(self.kv)} + computing {in_words(self.computing)}"
            f"{embedding} = {in_words(self.needed)} on the {self.name}, where {free} is free"
        )

    def shortage(self) -> str:
        """Return what is missing, and what to do about it."""
        return (
            f"{in_words(self.needed)} are needed and {in_words(self.free or 0)} are free on the {self.name}, "
            f"{in_words(self.missing)} too few: lower kv.budget (the KV cache takes {in_words(self.kv)}), or take a "
            f"smaller model (its weights take {in_words(self.weights)})"
            + (f"; models that embed take {in_words(self.embedding)}" if self.embedding else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a configuration takes, in bytes: on each of its devices, and on all of them together.

    Attributes:
        device: what kind the devices are of.
        devices: each device that lanes compute on; of several, each has a copy of the weights.
        lanes: all lanes that generate, in their order.
        cell: what one token takes.
        state: what a sequence takes beside its cells.
        swap: what parked requests may take of the host's memory, when there are any.
        embedding: the models that embed or rerank, with their lanes.
    """

    device: Device
    devices: tuple[DevicePlan, ...]
    lanes: tuple[LanePlan, ...]
    cell: int
    state: int
    swap: int
    embedding: tuple[EmbeddingPlan, ...] = ()

    @property
    def name(self) -> str:
        """What the devices are called: the name of the only one, or how many there are."""
        return self.devices[0].name if len(self.devices) == 1 else f"{len(self.devices)} GPUs"

    @property
    def offloaded(self) -> float:
        """Which part of weights and cells is on the devices."""
        return self.devices[0].offloaded

    @property
    def weights(self) -> int:
        """What the weights take, of all copies."""
        return sum(device.weights for device in self.devices)

    @property
    def kv(self) -> int:
        """What all lanes' cells and states take."""
        return sum(device.kv for device in self.devices)

    @property
    def computing(self) -> int:
        """What all lanes' steps work in, on the devices."""
        return sum(device.computing for device in self.devices)

    @property
    def needed(self) -> int:
        """What is taken of the devices' memory from the start."""
        return sum(device.needed for device in self.devices)

    @property
    def missing(self) -> int:
        """How much more is needed than is free, on the devices where that is so."""
        return sum(device.missing for device in self.devices)

    @property
    def free(self) -> int | None:
        """What the devices have free before anything is loaded; None if nobody knows."""
        known = [device.free for device in self.devices if device.free is not None]
        return sum(known) if len(known) == len(self.devices) else None

    @property
    def regions(self) -> list[RegionPlan]:
        """The lanes' regions, in their order."""
        return [lane.region for lane in self.lanes]

    def log(self) -> None:
        """Say what is needed, and warn where that is not there."""
        for device in self.devices:
            logger.info("memory: %s", device.summary())
        for lane in self.lanes:
            logger.info(
                "lane %s: %s, %d KV cells for %d sequences, %d of them at once, up to %d tokens each",
                lane.name,
                lane.region.layout.value,
                lane.region.cells,
                lane.region.sequences,
                lane.region.places,
                lane.region.limit,
            )
        for plan in self.embedding:
            logger.info(
                "model %s: %s, %s, up to %d tokens each, %d in a step, on lanes %s",
                plan.name,
                plan.task,
                plan.pooling.value,
                plan.limit,
                plan.step_tokens,
                ", ".join(lane.name for lane in plan.lanes),
            )
        for shortage in self.shortages():
            logger.warning("%s", shortage)

    def shortages(self) -> list[str]:
        """Return what is missing on each device where something is, and what to do about it."""
        return [device.shortage() for device in self.devices if device.missing]


def in_words(count: float) -> str:
    """Write a number of bytes as people say it, such as `1.5 GiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

"""Plans what memory a configuration takes, before the weights are loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from llamalane.errors import ConfigError
from llamalane.kvcache.budget import (
    CELLS_MULTIPLE,
    Bytes,
    Layout,
    RegionPlan,
    count_sequences,
    divide,
    least_budget,
    parse_amount,
)
from llamalane.kvcache.cell_size import CellShape
from llamalane.scheduler.config import EngineConfig
from llamalane.streams import Device
from llamalane.streams.llama import ContextOptions, Model
from llamalane.streams.llama.footprint import MOST_MEASURED_STATES, Footprint, measure_cells, measure_context

logger = logging.getLogger(__name__)

DEFAULT_CELLS_PER_PLACE = 2048
"""KV cells for each place when the configuration names no budget."""

SMALLEST_PART = 512
"""Fewer cells than that for each sequence are shared rather than divided, unless the configuration says otherwise."""

MOST_MEASURED_CELLS = 1 << 22
"""llama.cpp's books of the cells are real even where the cells are not; those of more than that are not made."""

OptionsOf = Callable[[RegionPlan], ContextOptions]
"""How a lane's context is created, by its region."""


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
class MemoryPlan:
    """What a configuration takes of the device's memory, in bytes.

    Attributes:
        offloaded: which part of the weights and cells is on the device: 1, unless only some layers go to a GPU.
        cell: what one token takes.
        state: what a sequence takes beside its cells.
        swap: what parked requests may take of the host's memory, when there are any.
        free: what the device has free before anything is loaded; None if nobody knows.
    """

    device: Device
    offloaded: float
    weights: int
    cell: int
    state: int
    lanes: tuple[LanePlan, ...]
    swap: int
    free: int | None

    @property
    def kv(self) -> int:
        """What all lanes' cells and states take."""
        return sum(lane.cells + lane.states for lane in self.lanes)

    @property
    def computing(self) -> int:
        """What all lanes' steps work in, on the device."""
        return sum(lane.computing for lane in self.lanes)

    @property
    def needed(self) -> int:
        """What is taken of the device's memory from the start."""
        return round((self.weights + self.kv) * self.offloaded) + self.computing

    @property
    def missing(self) -> int:
        """How much more is needed than is free."""
        return max(self.needed - self.free, 0) if self.free is not None else 0

    @property
    def regions(self) -> list[RegionPlan]:
        """The lanes' regions, in their order."""
        return [lane.region for lane in self.lanes]

    def log(self) -> None:
        """Say what is needed, and warn if that is not there."""
        logger.info("memory: %s", self.summary())
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
        if self.missing:
            logger.warning("%s", self.shortage())

    def summary(self) -> str:
        """Return one line of what is taken and what is free."""
        free = "unknown" if self.free is None else in_words(self.free)
        return (
            f"weights {in_words(self.weights)} + KV {in_words(self.kv)} + computing {in_words(self.computing)} = "
            f"{in_words(self.needed)} on the {self.device.value.upper()}, where {free} is free"
        )

    def shortage(self) -> str:
        """Return what is missing, and what to do about it."""
        return (
            f"{in_words(self.needed)} are needed and {in_words(self.free or 0)} are free on the "
            f"{self.device.value.upper()}, {in_words(self.missing)} too few: lower kv.budget "
            f"(the KV cache takes {in_words(self.kv)}), or take a smaller model (its weights take "
            f"{in_words(self.weights)})"
        )


def choose_layout(wanted: str, device: Device, part: int) -> Layout:
    """Return the layout that the configuration wants, where an equal part of a region has `part` cells.

    On a CPU attention takes time for every cell that it passes over, its own or not, so sequences are kept apart.
    """
    if wanted != "auto":
        return Layout(wanted)
    return Layout.PARTITIONED if device is Device.CPU and part >= SMALLEST_PART else Layout.PAGED


def plan_memory(
    config: EngineConfig, model: Model, device: Device, options_of: OptionsOf, free: int | None
) -> MemoryPlan:
    """Plan the lanes of a configuration; `model` is one without weights.

    `free` is how many bytes the device has free before anything is loaded, None if nobody knows. Raises `ConfigError`
    when the budget is too small or the cache types do not suit the model, and `ContextError` when llama.cpp refuses
    the lanes' contexts. What is larger than the free memory is planned all the same.
    """
    shape = shape_of(model)
    cell = shape.bytes_per_cell(config.kv.key_type, config.kv.value_type)
    offloaded = _offloaded(config, model, device)
    # Where only some layers are on the device, so is that part of the cells.
    left = max(free - model.bytes * offloaded, 0) / offloaded if free is not None and offloaded else None
    regions = _regions(config, _Price(cell, shape.state), left, device, model.train_context)
    footprints: dict[ContextOptions, Footprint] = {}
    lanes = []
    for lane, region in zip(config.streams.lanes, regions, strict=True):
        options = options_of(region)
        smaller = _measurable(options, shape.state)
        if smaller not in footprints:
            footprints[smaller] = measure_context(model, smaller)
        footprint = footprints[smaller]
        on_cpu = device is Device.CPU
        lanes.append(
            LanePlan(
                name=lane.name,
                region=region,
                cells=region.cells * cell,
                states=region.sequences * shape.state,
                computing=footprint.host + footprint.device if on_cpu else footprint.device,
                host_computing=0 if on_cpu else footprint.host,
                measured=smaller == options,
            )
        )
    return MemoryPlan(
        device=device,
        offloaded=offloaded,
        weights=model.bytes,
        cell=cell,
        state=shape.state,
        lanes=tuple(lanes),
        swap=config.kv.swap,
        free=free,
    )


def shape_of(model: Model) -> CellShape:
    """Return what the cells of `model`, which is one without weights, hold."""
    numbers = measure_cells(model)
    return CellShape(
        keys=numbers.keys,
        values=numbers.values,
        key_head=model.key_head,
        value_head=model.value_head,
        state=numbers.state,
    )


def tokens_of(config: EngineConfig) -> int | None:
    """Return the KV budget in tokens, None where it depends on the model or the device."""
    if config.kv.budget is None:
        return DEFAULT_CELLS_PER_PLACE * sum(lane.places for lane in config.streams.lanes)
    return config.kv.budget if isinstance(config.kv.budget, int) else None


def in_words(count: float) -> str:
    """Write a number of bytes as people say it, such as `1.5 GiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _measurable(options: ContextOptions, state: int) -> ContextOptions:
    """Return `options`, or those of a smaller context where measuring would take much memory itself."""
    if options.cells <= MOST_MEASURED_CELLS and options.sequences * state <= MOST_MEASURED_STATES:
        return options
    return replace(options, cells=CELLS_MULTIPLE, sequences=1)


def _offloaded(config: EngineConfig, model: Model, device: Device) -> float:
    layers = config.models[0].gpu_layers
    every = model.layers + 1  # the output counts as one
    return 1.0 if device is Device.CPU or layers < 0 else min(layers, every) / every


@dataclass(frozen=True, slots=True)
class _Price:
    """What a token and a sequence cost, in bytes."""

    cell: int
    state: int

    def tokens(self, count: int, sequences: int) -> int:
        """Return for how many tokens of `sequences` so many bytes are enough."""
        return max(count - sequences * self.state, 0) // self.cell


def _regions(config: EngineConfig, price: _Price, left: float | None, device: Device, train: int) -> list[RegionPlan]:
    """Divide the budget; `left` is how many bytes a share of all would be."""
    places = [lane.places for lane in config.streams.lanes]
    weights = [lane.weight for lane in config.streams.lanes]
    spare = config.kv.spare_sequences
    parts = sum(places) + (spare or 0)
    tokens = tokens_of(config)
    if tokens is not None:
        layout = choose_layout(config.kv.layout, device, tokens // parts)
    else:
        count = _bytes_of(str(config.kv.budget), price, left)
        layout = choose_layout(config.kv.layout, device, price.tokens(count, parts) // parts)
        sequences = sum(count_sequences(each, layout, spare) for each in places)
        tokens = price.tokens(count, sequences)
        least = least_budget(places, layout=layout, spare=spare, weights=weights)
        if tokens < least:
            needed = least * price.cell + sequences * price.state
            states = f" and {sequences} states of {price.state} bytes" if price.state else ""
            raise ConfigError(
                f"kv.budget: {config.kv.budget}, which is {in_words(count)}, is too small for {sum(places)} places on "
                f"{len(places)} lanes: at least {needed} bytes ({in_words(needed)}) are needed, for {least} tokens of "
                f"{price.cell} bytes{states}"
            )
    return divide(tokens, places, train, layout=layout, spare=spare, weights=weights)


def _bytes_of(budget: str, price: _Price, left: float | None) -> int:
    amount = parse_amount(budget)
    if price.cell == 0:
        raise ConfigError(
            f"kv.budget: {budget} is no number of tokens for this model, which takes no memory for a token, only "
            f"{in_words(price.state)} for each sequence: give a number of tokens"
        )
    if isinstance(amount, Bytes):
        return amount.count
    if left is None:
        raise ConfigError(f"kv.budget: {budget} of the free memory is unknown, since nobody tells here what is free")
    return int(left * amount.part)

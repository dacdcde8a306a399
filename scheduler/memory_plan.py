"""Plans what memory a configuration takes, before the weights are loaded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from llamalane.errors import ConfigError
from llamalane.kvcache.budget import (
    CELLS_MULTIPLE,
    MOST_TOKENS,
    Bytes,
    Layout,
    RegionPlan,
    Share,
    count_sequences,
    divide,
    least_budget,
    parse_amount,
)
from llamalane.kvcache.cell_size import CellShape
from llamalane.scheduler.config import EngineConfig, LaneConfig
from llamalane.scheduler.memory_needs import DevicePlan, LanePlan, MemoryPlan, in_words
from llamalane.streams import Device
from llamalane.streams.llama import ContextOptions, Model
from llamalane.streams.llama.footprint import MOST_MEASURED_STATES, Footprint, measure_cells, measure_context

DEFAULT_CELLS_PER_PLACE = 2048
"""KV cells for each place when the configuration names no budget."""

SMALLEST_PART = 512
"""Fewer cells than that for each sequence are shared rather than divided, unless the configuration says otherwise."""

MOST_MEASURED_CELLS = 1 << 22
"""llama.cpp's books of the cells are real even where the cells are not; those of more than that are not made."""

OptionsOf = Callable[[RegionPlan], ContextOptions]
"""How a lane's context is created, by its region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A device before anything is loaded.

    Attributes:
        name: what it is called.
        lanes: the names of the lanes that will be there.
        model: the model, without weights, as it will be there.
        free: how many bytes are free; None if nobody knows.
    """

    name: str
    lanes: tuple[str, ...]
    model: Model
    free: int | None

    def left(self, offloaded: float) -> float | None:
        """Return how many bytes weights leave of which that part is on the device; None if nobody knows."""
        if self.free is None or not offloaded:
            return None
        # Where only some layers are on the device, so is that part of the cells.
        return max(self.free - self.model.bytes * offloaded, 0) / offloaded


def choose_layout(wanted: str, device: Device, part: int) -> Layout:
    """Return the layout that the configuration wants, where an equal part of a region has `part` cells.

    On a CPU attention takes time for every cell that it passes over, its own or not, so sequences are kept apart.
    """
    if wanted != "auto":
        return Layout(wanted)
    return Layout.PARTITIONED if device is Device.CPU and part >= SMALLEST_PART else Layout.PAGED


def plan_memory(config: EngineConfig, device: Device, sites: Sequence[Site], options_of: OptionsOf) -> MemoryPlan:
    """Plan the lanes of a configuration, which are divided among `sites`, devices of one kind.

    Raises `ConfigError` when the budget is too small or the cache types do not suit the model, and `ContextError` when
    llama.cpp refuses the lanes' contexts. What is larger than the free memory is planned all the same.
    """
    model = sites[0].model
    shape = shape_of(model)
    price = _Price(shape.bytes_per_cell(config.kv.key_type, config.kv.value_type), shape.state)
    offloaded = _offloaded(config, model, device)
    regions = _regions(config, price, sites, offloaded, device)
    measure = functools.cache(measure_context)  # lanes that are alike take as much
    lanes: dict[str, LanePlan] = {}
    devices = []
    for site in sites:
        there = [
            _plan_lane(name, regions[name], price, options_of, partial(measure, site.model)) for name in site.lanes
        ]
        if device is Device.CPU:
            there = [_on_host(lane) for lane in there]
        lanes.update(zip(site.lanes, there, strict=True))
        devices.append(
            DevicePlan(
                name=site.name,
                lanes=site.lanes,
                weights=site.model.bytes,
                kv=sum(lane.cells + lane.states for lane in there),
                offloaded=offloaded,
                computing=sum(lane.computing for lane in there),
                free=site.free,
            )
        )
    return MemoryPlan(
        device=device,
        devices=tuple(devices),
        lanes=tuple(lanes[lane.name] for lane in config.streams.lanes),
        cell=price.cell,
        state=price.state,
        swap=config.kv.swap,
    )


def _plan_lane(
    name: str, region: RegionPlan, price: _Price, options_of: OptionsOf, measure: Callable[[ContextOptions], Footprint]
) -> LanePlan:
    options = options_of(region)
    smaller = _measurable(options, price.state)
    footprint = measure(smaller)
    return LanePlan(
        name=name,
        region=region,
        cells=region.cells * price.cell,
        states=region.sequences * price.state,
        computing=footprint.device,
        host_computing=footprint.host,
        measured=smaller == options,
    )


def _on_host(lane: LanePlan) -> LanePlan:
    """Return the plan of a lane whose device's memory is the host's."""
    return replace(lane, computing=lane.computing + lane.host_computing, host_computing=0)


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


def _regions(
    config: EngineConfig, price: _Price, sites: Sequence[Site], offloaded: float, device: Device
) -> dict[str, RegionPlan]:
    """Divide the budget; a share is one of what each site has, all else is for all sites together."""
    lanes = config.streams.lanes
    if not _is_share(config.kv.budget):
        return _divide(config, lanes, price, sites[0].model.train_context, device)
    regions: dict[str, RegionPlan] = {}
    for site in sites:
        there = [lane for lane in lanes if lane.name in site.lanes]
        where = f" on {site.name}" if len(sites) > 1 else ""
        regions |= _divide(config, there, price, site.model.train_context, device, site.left(offloaded), where)
    return regions


def _divide(
    config: EngineConfig,
    lanes: Sequence[LaneConfig],
    price: _Price,
    train: int,
    device: Device,
    left: float | None = None,
    where: str = "",
) -> dict[str, RegionPlan]:
    """Divide the budget among lanes; `left` is how many bytes a share of all would be, `where` they are."""
    places = [lane.places for lane in lanes]
    weights = [lane.weight for lane in lanes]
    spare = config.kv.spare_sequences
    parts = sum(places) + (spare or 0)
    tokens = tokens_of(config)
    if tokens is not None:
        layout = _layouts(config, lanes, device, tokens // parts)
    else:
        count = _bytes_of(str(config.kv.budget), price, left)
        layout = _layouts(config, lanes, device, price.tokens(count, parts) // parts)
        sequences = sum(count_sequences(each, how, spare) for each, how in zip(places, layout, strict=True))
        tokens = price.tokens(count, sequences)
        if _is_share(config.kv.budget):
            tokens = min(tokens, MOST_TOKENS)
        elif tokens > MOST_TOKENS:
            raise ConfigError(
                f"kv.budget: {config.kv.budget}, which is {in_words(count)}{where}, holds {tokens} tokens of "
                f"{price.cell} bytes: at most {MOST_TOKENS} can be used"
            )
        least = least_budget(places, layout=layout, spare=spare, weights=weights)
        if tokens < least:
            needed = least * price.cell + sequences * price.state
            states = f" and {sequences} states of {price.state} bytes" if price.state else ""
            raise ConfigError(
                f"kv.budget: {config.kv.budget}, which is {in_words(count)}{where}, is too small "
                f"for {sum(places)} places on {len(places)} lanes: at least {needed} bytes ({in_words(needed)}) are "
                f"needed, for {least} tokens of {price.cell} bytes{states}"
            )
    regions = divide(tokens, places, train, layout=layout, spare=spare, weights=weights)
    return dict(zip([lane.name for lane in lanes], regions, strict=True))


def _layouts(config: EngineConfig, lanes: Sequence[LaneConfig], device: Device, part: int) -> list[Layout]:
    return [choose_layout(lane.layout or config.kv.layout, device, part) for lane in lanes]


def _is_share(budget: int | str | None) -> bool:
    return isinstance(budget, str) and isinstance(parse_amount(budget), Share)


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

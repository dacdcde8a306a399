"""Tells how much memory a configuration takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from llamalane.scheduler import EngineConfig
from llamalane.scheduler.assembly import plan
from llamalane.scheduler.embedding_plan import EmbeddingPlan
from llamalane.scheduler.memory_needs import DevicePlan, LanePlan, MemoryPlan, in_words

_LENGTHS = (256, 1024, 4096)
"""Of sequences, in tokens; a lane's limit comes beside them."""
_WIDTH = 120
"""Columns that the tables may take; a narrower terminal breaks their lines rather than their words."""
_CONFIGURATIONS = (".yaml", ".yml")


def is_configuration(file: Path) -> bool:
    """Return whether `file` is a configuration rather than a model."""
    return file.suffix.lower() in _CONFIGURATIONS


def print_plan(config: EngineConfig, *, as_json: bool) -> int:
    """Print what `config` takes, and return the exit code: 1 when more is needed than is free."""
    memory = plan(config)
    if as_json:
        print(json.dumps(_as_json(config, memory), indent=2))
    else:
        console = Console(highlight=False, markup=False, soft_wrap=True)
        console.width = max(console.width, _WIDTH)
        several = [_devices(memory)] if len(memory.devices) > 1 else []
        lanes = [_lanes(memory)] if memory.lanes else []
        embedding = [_embedding(memory)] if memory.embedding else []
        console.print(_totals(config, memory), *several, *lanes, *embedding, sep="\n")
        console.print("\n".join(memory.shortages()) or "this fits")
    return 1 if memory.missing else 0


def _totals(config: EngineConfig, memory: MemoryPlan) -> Table:
    cells = sum(lane.region.cells for lane in memory.lanes)
    states = sum(lane.states for lane in memory.lanes)
    sequences = sum(lane.region.sequences for lane in memory.lanes)
    host = _host_computing(memory)
    types = f"keys {config.kv.key_type}, values {config.kv.value_type}"
    files = ", ".join(dict.fromkeys(model.path.name for model in config.models))
    table = _table(f"{files} on the {memory.name}", show_header=False)
    table.add_column("what")
    table.add_column("size", justify="right")
    table.add_column("how")
    if memory.lanes:
        table.add_row("weights", in_words(memory.weights), _where(memory))
        table.add_row("KV cells", in_words(cells * memory.cell), f"{cells} tokens of {memory.cell} bytes: {types}")
    if states:
        table.add_row("states", in_words(states), f"{sequences} sequences of {memory.state} bytes")
    if memory.lanes:
        table.add_row("computing", in_words(memory.computing), _how(memory))
    if memory.embedding:
        taken = sum(device.embedding for device in memory.devices)
        table.add_row("embedding", in_words(taken), "models that embed or rerank, with their lanes")
    table.add_row("needed", in_words(memory.needed), f"on the {memory.name}", style="bold")
    table.add_row("free", "unknown" if memory.free is None else in_words(memory.free), "before anything is loaded")
    if host:
        table.add_row("host", in_words(host), "of the host's memory, for computing")
    if memory.lanes:
        table.add_row("swap", in_words(memory.swap), "at most, of the host's memory, when requests are parked")
    return table


def _host_computing(memory: MemoryPlan) -> int:
    generating = sum(lane.host_computing for lane in memory.lanes)
    return generating + sum(lane.host_computing for model in memory.embedding for lane in model.lanes)


def _where(memory: MemoryPlan) -> str:
    copies = f"{len(memory.devices)} copies" if len(memory.devices) > 1 else ""
    if memory.offloaded == 1:
        return copies
    part = f"{memory.offloaded:.0%} of weights and KV cells are on the {memory.name} (estimated)"
    return f"{copies}; {part}" if copies else part


def _how(memory: MemoryPlan) -> str:
    if all(lane.measured for lane in memory.lanes):
        return "measured: what llama.cpp says of such lanes' buffers"
    return "estimated, at least: what llama.cpp says of smaller lanes' buffers"


def _devices(memory: MemoryPlan) -> Table:
    table = _table("Devices, each with a copy of the weights")
    table.add_column("device")
    table.add_column("lanes")
    for name in ("weights", "KV", "computing", "needed", "free"):
        table.add_column(name, justify="right", no_wrap=True)
    for device in memory.devices:
        sizes = (device.weights, device.kv, device.computing, device.needed)
        free = "unknown" if device.free is None else in_words(device.free)
        table.add_row(device.name, ", ".join(device.lanes), *map(in_words, sizes), free)
    return table


def _lanes(memory: MemoryPlan) -> Table:
    table = _table("Lanes, and how many sequences of so many tokens run at once")
    table.add_column("lane")
    table.add_column("layout")
    for name in ("KV", "cells", "places", "spare", "limit", *(f"of {length}" for length in _LENGTHS), "of limit"):
        table.add_column(name, justify="right", no_wrap=True)
    for lane in memory.lanes:
        region = lane.region
        numbers = (region.cells, region.places, region.sequences - region.places, region.limit)
        fitting = (lane.fitting(length) for length in (*_LENGTHS, region.limit))
        size = in_words(lane.cells + lane.states)
        table.add_row(lane.name, region.layout.value, size, *map(str, numbers), *map(str, fitting))
    return table


def _embedding(memory: MemoryPlan) -> Table:
    table = _table("Models that embed or rerank")
    for name in ("model", "task", "pooling", "lanes"):
        table.add_column(name)
    for name in ("places", "input", "step", "numbers", "weights", "cells", "computing"):
        table.add_column(name, justify="right", no_wrap=True)
    for model in memory.embedding:
        counts = (sum(lane.places for lane in model.lanes), model.limit, model.step_tokens, model.width)
        sizes = (
            sum(model.weights.values()),
            sum(lane.cells for lane in model.lanes),
            sum(lane.computing for lane in model.lanes),
        )
        words = (model.name, model.task, model.pooling.value, ", ".join(lane.name for lane in model.lanes))
        table.add_row(*words, *map(str, counts), *map(in_words, sizes))
    return table


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=show_header)


def _as_json(config: EngineConfig, memory: MemoryPlan) -> dict[str, Any]:
    return {
        "model": str((config.generating_model or config.models[0]).path),
        "device": memory.device.value,
        "bytes": {
            "weights": memory.weights,
            "kv": memory.kv,
            "computing": memory.computing,
            "needed": memory.needed,
            "free": memory.free,
            "missing": memory.missing,
            "embedding": sum(device.embedding for device in memory.devices),
            "host_computing": _host_computing(memory),
            "swap": memory.swap,
            "each_token": memory.cell,
            "each_sequence": memory.state,
        },
        "measured": all(lane.measured for lane in memory.lanes),
        "offloaded": memory.offloaded,
        "devices": [_device_as_json(device) for device in memory.devices],
        "lanes": [_lane_as_json(lane) for lane in memory.lanes],
        "embedding": [_embedding_as_json(model) for model in memory.embedding],
    }


def _device_as_json(device: DevicePlan) -> dict[str, Any]:
    return {
        "name": device.name,
        "lanes": list(device.lanes),
        "bytes": {
            "weights": device.weights,
            "kv": device.kv,
            "computing": device.computing,
            "embedding": device.embedding,
            "needed": device.needed,
            "free": device.free,
            "missing": device.missing,
        },
    }


def _lane_as_json(lane: LanePlan) -> dict[str, Any]:
    region = lane.region
    return {
        "name": lane.name,
        "layout": region.layout.value,
        "cells": region.cells,
        "places": region.places,
        "spare": region.sequences - region.places,
        "limit": region.limit,
        "bytes": {"cells": lane.cells, "states": lane.states, "computing": lane.computing},
        "fitting": {str(length): lane.fitting(length) for length in (*_LENGTHS, region.limit)},
    }


def _embedding_as_json(model: EmbeddingPlan) -> dict[str, Any]:
    return {
        "model": model.name,
        "task": model.task,
        "pooling": model.pooling.value,
        "max_input": model.limit,
        "step_tokens": model.step_tokens,
        "numbers": model.width,
        "weights": sum(model.weights.values()),
        "lanes": [
            {
                "name": lane.name,
                "places": lane.places,
                "bytes": {"cells": lane.cells, "computing": lane.computing, "host_computing": lane.host_computing},
            }
            for lane in model.lanes
        ],
    }

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
from llamalane.scheduler.memory_plan import LanePlan, MemoryPlan, in_words

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
        console.print(_totals(config, memory), _lanes(memory), sep="\n")
        console.print(memory.shortage() if memory.missing else "this fits")
    return 1 if memory.missing else 0


def _totals(config: EngineConfig, memory: MemoryPlan) -> Table:
    device = memory.device.value.upper()
    cells = sum(lane.region.cells for lane in memory.lanes)
    states = sum(lane.states for lane in memory.lanes)
    sequences = sum(lane.region.sequences for lane in memory.lanes)
    host = sum(lane.host_computing for lane in memory.lanes)
    types = f"keys {config.kv.key_type}, values {config.kv.value_type}"
    table = _table(f"{config.models[0].path.name} on the {device}", show_header=False)
    table.add_column("what")
    table.add_column("size", justify="right")
    table.add_column("how")
    table.add_row("weights", in_words(memory.weights), _where(memory))
    table.add_row("KV cells", in_words(cells * memory.cell), f"{cells} tokens of {memory.cell} bytes: {types}")
    if states:
        table.add_row("states", in_words(states), f"{sequences} sequences of {memory.state} bytes")
    table.add_row("computing", in_words(memory.computing), _how(memory))
    table.add_row("needed", in_words(memory.needed), f"on the {device}", style="bold")
    table.add_row("free", "unknown" if memory.free is None else in_words(memory.free), "before anything is loaded")
    if host:
        table.add_row("host", in_words(host), "of the host's memory, for computing")
    table.add_row("swap", in_words(memory.swap), "at most, of the host's memory, when requests are parked")
    return table


def _where(memory: MemoryPlan) -> str:
    if memory.offloaded == 1:
        return ""
    return f"{memory.offloaded:.0%} of weights and KV cells are on the {memory.device.value.upper()} (estimated)"


def _how(memory: MemoryPlan) -> str:
    if all(lane.measured for lane in memory.lanes):
        return "measured: what llama.cpp says of such lanes' buffers"
    return "estimated, at least: what llama.cpp says of smaller lanes' buffers"


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


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=show_header)


def _as_json(config: EngineConfig, memory: MemoryPlan) -> dict[str, Any]:
    return {
        "model": str(config.models[0].path),
        "device": memory.device.value,
        "bytes": {
            "weights": memory.weights,
            "kv": memory.kv,
            "computing": memory.computing,
            "needed": memory.needed,
            "free": memory.free,
            "missing": memory.missing,
            "host_computing": sum(lane.host_computing for lane in memory.lanes),
            "swap": memory.swap,
            "each_token": memory.cell,
            "each_sequence": memory.state,
        },
        "measured": all(lane.measured for lane in memory.lanes),
        "offloaded": memory.offloaded,
        "lanes": [_lane_as_json(lane) for lane in memory.lanes],
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

"""Measurements as Markdown for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import enum
import json
from pathlib import Path
from statistics import median
from typing import Any

from llamalane.bench.document import Table, table_lines
from llamalane.bench.machine import Machine
from llamalane.bench.peers.kinds import Peer, Setup
from llamalane.bench.urgent import UrgentResult
from llamalane.bench.workload import Source


def to_json(result: object) -> str:
    """Return everything that was measured: dataclasses, and what holds them."""
    return json.dumps(result, indent=2, default=_plain)


def urgent_markdown(result: UrgentResult) -> str:
    """Return the urgent requests' times as a table."""
    plan = result.plan
    reserve = f", {plan.reserve} of them reserved" if plan.peer is Peer.LLAMALANE else ""
    rows = [
        [name, len(times), f"{median(times):.3f}", f"{max(times):.3f}"]
        for name, times in (("idle", result.idle), ("loaded", result.loaded))
    ]
    lines = [
        *machine_lines(result.machine, {plan.peer.value: result.build}),
        setup_line(plan.setup) + f" Server: {plan.peer.value}{reserve}.",
        source_line(f"Each of {plan.clients} clients at level 5", plan.background, "completion"),
        source_line("An urgent request at level 1", plan.urgent, "completion"),
    ]
    load = result.background
    return "\n".join(
        [
            *(f"- {line}" for line in lines),
            "",
            *table_lines(Table.of(["server", "tries", "TTFT median, s", "TTFT worst, s"], rows)),
            "",
            f"Under load, of the idle median: {result.median_ratio:.2f}× in the median, "
            f"{result.worst_ratio:.2f}× at worst. The load got {load.tokens_per_second or 0:.1f} tokens/s "
            f"with {sum(load.errors.values())} errors.",
        ]
    )


def machine_lines(machine: Machine, builds: dict[str, str]) -> list[str]:
    """Return what a reader has to know of the machine, the versions and the builds."""
    load = "unknown" if machine.load_average is None else " ".join(f"{one:.2f}" for one in machine.load_average)
    lines = [
        f"{machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB; {machine.system}; {machine.python}.",
        ", ".join(f"{name} {version}" for name, version in machine.versions.items()) + ".",
        f"Before the start: load average {load}; {machine.busy:.2f} cores busy.",
        *(f"Build of {name}: {build}." for name, build in builds.items()),
    ]
    if machine.settings:
        lines.append(f"Environment: {', '.join(f'{name}={value}' for name, value in machine.settings.items())}.")
    return lines


def setup_line(setup: Setup) -> str:
    """Return what all servers have in common."""
    return (
        f"{setup.model.name}, {setup.places} places, {setup.threads} threads, {setup.cells} KV cells, "
        "over HTTP on 127.0.0.1."
    )


def source_line(who: str, source: Source, kind: str) -> str:
    """Return what somebody asks for."""
    sampling = ", ".join(f"{name} {value:g}" for name, value in source.sampling.items())
    return f"{who}: a {kind} for {source}; {sampling}."


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")

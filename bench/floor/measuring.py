"""Carries a plan out: everything is opened once for each number of sequences, and then takes turns."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from llamalane.bench.floor.contestants import Contestant, EngineHere, Floor, ServerThere
from llamalane.bench.floor.plan import CLIENTS, SEQUENCE_CELLS, FloorPlan, FloorResult, Run, is_floor
from llamalane.bench.floor.probes import Probes
from llamalane.bench.floor.tables import run_line
from llamalane.bench.machine import CpuMeter
from llamalane.bench.peers.kinds import Setup
from llamalane.bench.peers.starting import llamalane_settings
from llamalane.bench.server import HOST, free_port, run_server
from llamalane.scheduler import Engine, EngineConfig
from llamalane.streams.llama import Context, ContextOptions, Model

Tell = Callable[[str], None]


async def measure_floor(plan: FloorPlan, tell: Tell) -> tuple[FloorResult, ...]:
    """Measure everything that `plan` asks for, telling each number as soon as it is there."""
    results = []
    for sequences in plan.sequences:
        async with _contestants(plan, sequences) as contestants:
            results.append(await take_turns(plan, sequences, contestants, tell))
    return tuple(results)


async def take_turns(plan: FloorPlan, sequences: int, contestants: list[Contestant], tell: Tell) -> FloorResult:
    """Measure everybody once in each round, and at the end, with probes, those whose time is to be split."""
    runs = []
    for number in range(1, plan.rounds + 1):
        # Who came last in one round comes first in the next: a machine that drifts favours nobody.
        for one in contestants if number % 2 else contestants[::-1]:
            meter = CpuMeter(None)
            measured = await one.measure(plan.seed + number)
            cpu = meter.read()
            run = Run(
                what=one.name,
                round=number,
                tokens_per_second=measured.tokens_per_second,
                lane=measured.split.lane,
                others=cpu.others + cpu.stolen,
            )
            runs.append(run)
            tell(run_line(sequences, run))
    splits = {}
    for one in contestants:
        if plan.split and not is_floor(one.name):
            measured = await one.measure(plan.seed, probed=True)
            splits[one.name] = measured.split
            tell(f"{sequences} sequences, with probes, {one.name}: {measured.tokens_per_second:.1f} tokens/s")
    return FloorResult(sequences=sequences, runs=tuple(runs), splits=splits)


@contextlib.asynccontextmanager
async def _contestants(plan: FloorPlan, sequences: int) -> AsyncIterator[list[Contestant]]:
    """Open the floors, the engine and the server; each waits for its turn."""
    probes = Probes()
    opened: list[ContextOptions] = []

    def open_context(model: Model, options: ContextOptions) -> Context:
        opened.append(options)
        return probes.open_context(model, options)

    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine(_config(plan, sequences), open_context=open_context))
        floors = [Floor(plan, opened[0], chunk) for chunk in plan.chunks]
        contestants: list[Contestant] = [*floors, EngineHere(plan, engine, probes, CLIENTS * sequences)]
        if plan.http:
            server = stack.enter_context(run_server(*_server(plan, sequences)))
            contestants.append(ServerThere(plan, server, CLIENTS * sequences))
        yield contestants


def _config(plan: FloorPlan, sequences: int) -> EngineConfig:
    cells = sequences * SEQUENCE_CELLS
    setup = Setup(model=plan.model, places=sequences, threads=plan.threads, cells=cells)
    return EngineConfig.model_validate(llamalane_settings(setup))


def _server(plan: FloorPlan, sequences: int) -> tuple[list[str], int]:
    """Return the arguments with which Python serves what the engine here has, and the port."""
    port = free_port()
    numbers = {"places": sequences, "threads": plan.threads, "kv-cells": sequences * SEQUENCE_CELLS, "port": port}
    options = [f"--{name}={number}" for name, number in numbers.items()]
    return ["-m", "llamalane.bench.floor.server", str(plan.model), f"--host={HOST}", *options], port

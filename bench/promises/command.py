"""The command `llamalane bench promises`: carries the measurements out, and prints what came of them."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from llamalane.bench.machine import describe_machine
from llamalane.bench.model import find_model
from llamalane.bench.promises import Promise
from llamalane.bench.promises.asking import PARKS, config_for, engine_for
from llamalane.bench.promises.endless import measure_backlog, measure_endless
from llamalane.bench.promises.overload import measure_overload
from llamalane.bench.promises.parking import measure_parking
from llamalane.bench.promises.refusals import measure_refusals
from llamalane.bench.promises.tables import (
    endless_lines,
    overload_lines,
    parking_lines,
    refusal_lines,
    tenant_lines,
    urgency_lines,
)
from llamalane.bench.promises.tenants import measure_tenants
from llamalane.bench.promises.urgency import measure_urgency
from llamalane.bench.promises.watching import WatchedEngine
from llamalane.scheduler import Engine
from llamalane.streams.cores import available_cores

PLACES = 8
CELLS = 4096
QUEUE = 64
LONG_QUEUE = 1000
"""Where everybody may wait."""
MINUTE = 60.0
TRIES = 40
OVERSUBSCRIBED = (2, 4)


def run(model: Path | None, promises: list[Promise], *, tries: int, seconds: float, seed: int) -> None:
    """Measure each of `promises` on an engine of its own, and print a table for each."""
    machine = describe_machine()
    print(f"{machine.processor}, {machine.cores} cores; {PLACES} places, {CELLS} KV cells, nothing reserved.\n")
    for promise in promises:
        print("\n".join(anyio.run(_measure, find_model(model), promise, tries, seconds, seed)), flush=True)


async def _measure(model: Path, promise: Promise, tries: int, seconds: float, seed: int) -> list[str]:
    threads = len(available_cores())
    match promise:
        case Promise.PARKING:
            return await _measure_parking(model, threads, seed)
        case Promise.ENDLESS | Promise.TENANTS:
            config = config_for(model, places=PLACES, threads=threads, cells=CELLS, max_requests=LONG_QUEUE)
            async with WatchedEngine(config) as engine:
                return await _measure_waiting(engine, promise, min(tries, TRIES), min(seconds, MINUTE), seed)
        case _:
            async with engine_for(model, places=PLACES, threads=threads, cells=CELLS, max_requests=QUEUE) as engine:
                return await _measure_busy(engine, promise, tries, seconds, seed)


async def _measure_busy(engine: Engine, promise: Promise, tries: int, seconds: float, seed: int) -> list[str]:
    match promise:
        case Promise.URGENCY:
            urgency = await measure_urgency(engine, tries=tries, clients=2 * PLACES, seed=seed, tell=_tell)
            return urgency_lines(urgency)
        case Promise.REFUSALS:
            return refusal_lines(await measure_refusals(engine, tries=20 * tries))
        case _:
            return overload_lines(await measure_overload(engine, seconds=seconds, seed=seed))


async def _measure_waiting(engine: WatchedEngine, promise: Promise, tries: int, seconds: float, seed: int) -> list[str]:
    if promise is Promise.TENANTS:
        return tenant_lines(await measure_tenants(engine, seconds=seconds, seed=seed))
    endless = await measure_endless(engine, clients=2 * PLACES, seconds=seconds, seed=seed)
    await measure_backlog(engine, endless, tries=tries, seed=seed + 1, tell=_tell)
    return endless_lines(endless)


async def _measure_parking(model: Path, threads: int, seed: int) -> list[str]:
    return parking_lines(
        [
            (
                times,
                park,
                await measure_parking(
                    model, places=PLACES, threads=threads, times=times, park=park, seed=seed, tell=_tell
                ),
            )
            for times in OVERSUBSCRIBED
            for park in PARKS
        ]
    )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

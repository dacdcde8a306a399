"""The same load on each server in turn, round after round."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import anyio
import psutil

from llamalane.bench.exchange import Target
from llamalane.bench.latencies import Latencies
from llamalane.bench.load import ClosedLoop, LoadResult
from llamalane.bench.machine import CpuMeter, Machine
from llamalane.bench.open_loop import OpenLoop
from llamalane.bench.peers.contestants import Contestant
from llamalane.bench.peers.kinds import Arrivals
from llamalane.bench.peers.plan import Comparison, ComparisonPlan, Load, Measurement, Memory
from llamalane.bench.summary import LoadSummary, Objective, summarize
from llamalane.errors import LlamalaneError

_CROWD = 2
"""Clients for each place when it is looked for how much the servers can do."""


def compare(plan: ComparisonPlan, machine: Machine, tell: Callable[[str], None]) -> Comparison:
    """Carry out `plan`, telling of each measurement as soon as it is made. Whoever comes last in a round comes first in
    the next.
    """
    builds = {one.name: build for one in plan.contestants if (build := one.build()) is not None}
    seeds = random.Random(plan.seed)
    measurements = []
    for load in plan.loads or _shares_of_saturation(plan, tell):
        order = list(plan.contestants)
        for number in range(1, plan.rounds + 1):
            seed = seeds.getrandbits(32)
            for contestant in order:
                measurement = measure(plan, contestant, load, number, seed)
                measurements.append(measurement)
                tell(measurement_line(measurement))
            order.reverse()
    return Comparison(plan=plan, machine=machine, builds=builds, measurements=tuple(measurements))


def measure(plan: ComparisonPlan, contestant: Contestant, load: Load, number: int, seed: int) -> Measurement:
    """Put a load on a server once; raises `LlamalaneError` when it ends meanwhile."""
    with contestant.serve() as server:
        target = dataclasses.replace(contestant.target(server), chat=plan.chat)
        try:
            meter = CpuMeter(server.pid, remote=not contestant.is_local)
            result, memory = anyio.run(_run, plan, target, load, seed, server.pid)
            cpu = meter.read()
        except* psutil.NoSuchProcess as errors:
            raise LlamalaneError(f"{contestant.name} ended while it was measured") from errors
    return Measurement(
        contestant=contestant.name,
        load=load,
        round=number,
        summary=result.summary(plan.objective),
        latencies=Latencies.of(result.records, result.window),
        classes=_by_class(result, plan.objective),
        memory=memory,
        cpu=cpu,
    )


def measurement_line(measurement: Measurement) -> str:
    """Return one measurement in a line, for progress."""
    summary, cpu = measurement.summary, measurement.cpu
    first = summary.time_to_first_token
    parts = [
        f"{measurement.load}, round {measurement.round}, {measurement.contestant}: "
        f"{measurement.tokens_per_second:.1f} tokens/s",
        f"TTFT {first.median:.2f} s" if first else "no TTFT",
        f"{summary.requests} requests, {summary.cut} cut, {summary.rejections} refused, "
        f"{sum(summary.errors.values())} errors",
        f"CPU {'?' if cpu.server is None else format(cpu.server, '.2f')} server, {summary.generator_cpu:.2f} clients, "
        f"{cpu.others:.2f} others, {cpu.stolen:.2f} stolen",
    ]
    if summary.wrong_length:
        parts.append(f"{summary.wrong_length} answers of another length than asked for")
    return "; ".join(parts)


def _shares_of_saturation(plan: ComparisonPlan, tell: Callable[[str], None]) -> list[Load]:
    """Measure how many requests a second the quickest server answers, and return shares of that as loads."""
    crowd = Load(Arrivals.CLOSED, _CROWD * plan.setup.places)
    rates = []
    for contestant in plan.contestants:
        rate = measure(plan, contestant, crowd, 0, plan.seed).summary.requests_per_second or 0.0
        tell(f"saturated, {contestant.name}: {rate:.2f} requests/s")
        rates.append(rate)
    return [Load(Arrivals.POISSON, share * max(rates)) for share in plan.shares] if max(rates) else []


async def _run(
    plan: ComparisonPlan, target: Target, load: Load, seed: int, server: int | None
) -> tuple[LoadResult, Memory | None]:
    memory: list[int] = []
    async with anyio.create_task_group() as group:
        if server is not None:
            group.start_soon(_watch_memory, server, plan, memory)
        result = await _put(plan, target, load, seed)
        group.cancel_scope.cancel()
    if server is None or len(memory) < 2:
        return result, None
    return result, Memory(memory[0], memory[1], resident_memory(server))


async def _put(plan: ComparisonPlan, target: Target, load: Load, seed: int) -> LoadResult:
    seconds = plan.warm_up + plan.seconds
    if load.arrivals is Arrivals.POISSON:
        arriving = OpenLoop(target, plan.source, rate=load.amount, seed=seed)
        return await arriving.run(seconds=seconds, warm_up=plan.warm_up)
    clients = ClosedLoop(target, plan.source, clients=int(load.amount), seed=seed)
    return await clients.run(seconds=seconds, warm_up=plan.warm_up)


async def _watch_memory(server: int, plan: ComparisonPlan, memory: list[int]) -> None:
    for pause in (plan.warm_up, plan.seconds / 2):
        await anyio.sleep(pause)
        memory.append(resident_memory(server))


def resident_memory(process: int) -> int:
    """Return the resident memory of a process and those that it has started, in bytes."""
    parent = psutil.Process(process)
    return sum(one.memory_info().rss for one in (parent, *parent.children(recursive=True)))


def _by_class(result: LoadResult, objective: Objective | None) -> dict[str, LoadSummary]:
    names = sorted({record.kind for record in result.records if record.kind})
    return {
        name: summarize(
            [record for record in result.records if record.kind == name],
            result.window,
            result.generator_cpu,
            objective,
        )
        for name in names
    }

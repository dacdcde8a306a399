"""Streams many answers at once from a server in a process of its own, and tells what each token cost it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
from pydantic import TypeAdapter

from llamalane.bench.floor.plan import SEQUENCE_CELLS
from llamalane.bench.floor.probes import Split
from llamalane.bench.floor.server import PROBES, SPLIT
from llamalane.bench.load import ClosedLoop
from llamalane.bench.machine import Machine
from llamalane.bench.server import HOST, Server, free_port, run_server
from llamalane.bench.streaming.server import WRITES
from llamalane.bench.streaming.writes import WriteCounter
from llamalane.bench.workload import Workload

Tell = Callable[[str], None]

SCHEDULING = ("scheduling", "tokens to text", "tokenizing")
"""The work of the loop's thread that is not encoding and sending; all else is."""
LIMIT = 60e-6
"""So many seconds of CPU time should encoding and sending a token take, at most."""
_SPLIT, _COUNTER = TypeAdapter(Split), TypeAdapter(WriteCounter)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingPlan:
    """What is measured: `streams` clients in a closed loop, each with a place, for `seconds` after a warm-up."""

    model: Path
    threads: int
    workload: Workload
    streams: int
    seconds: float
    warm_up: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What was spent in some time. `writes` and `bytes` went to connections; `split` has the loop's CPU time."""

    split: Split
    writes: int
    bytes: int

    @property
    def tokens(self) -> int:
        """How many tokens were chosen."""
        return self.split.lane.tokens

    @property
    def sending(self) -> float:
        """CPU seconds of the loop's thread for encoding and sending, and whatever else is told of no other part."""
        return self.split.loop - sum(self.split.parts[name] for name in SCHEDULING)

    def per_token(self, amount: float) -> float:
        """Return an amount for each token."""
        return amount / max(1, self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingReport:
    """What came of it: `plain` without probes, whose loop time is a server's own, and `probed` with them."""

    plan: StreamingPlan
    machine: Machine
    plain: Cost
    probed: Cost


async def measure_streaming(plan: StreamingPlan, machine: Machine, tell: Tell) -> StreamingReport:
    """Measure, first without probes and then with them."""
    port = free_port()
    cells = plan.streams * SEQUENCE_CELLS
    numbers = {"places": plan.streams, "threads": plan.threads, "kv-cells": cells, "port": port}
    options = [f"--{name}={number}" for name, number in numbers.items()]
    arguments = ["-m", "llamalane.bench.streaming.server", str(plan.model), f"--host={HOST}", *options]
    with run_server(arguments, port) as server:
        costs = []
        for probed in (False, True):
            costs.append(await _measure(plan, server, probed=probed))
            lane = costs[-1].split.lane
            tell(f"{'with' if probed else 'without'} probes: {lane.tokens_per_second:.0f} tokens/s")
    return StreamingReport(plan=plan, machine=machine, plain=costs[0], probed=costs[1])


async def _measure(plan: StreamingPlan, server: Server, *, probed: bool) -> Cost:
    target = await anyio.to_thread.run_sync(server.target)
    load = ClosedLoop(target, plan.workload, clients=plan.streams, seed=plan.seed)
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        (await client.put(f"{PROBES}/{'on' if probed else 'off'}")).raise_for_status()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(load.run, seconds=plan.warm_up + plan.seconds + 1.0))
            await anyio.sleep(plan.warm_up)
            before = await _read(client)
            await anyio.sleep(plan.seconds)
            after = await _read(client)
            load.stop()
    return Cost(
        split=after.split.since(before.split),
        writes=after.writes - before.writes,
        bytes=after.bytes - before.bytes,
    )


async def _read(client: httpx.AsyncClient) -> Cost:
    split = _SPLIT.validate_json((await client.get(SPLIT)).content)
    counter = _COUNTER.validate_json((await client.get(WRITES)).content)
    return Cost(split=split, writes=counter.writes, bytes=counter.bytes)


def streaming_markdown(report: StreamingReport) -> str:
    """Return the report as Markdown."""
    plan, plain, probed = report.plan, report.plain, report.probed
    rows = [("encoding and sending", probed.sending), *((name, probed.split.parts[name]) for name in SCHEDULING)]
    lane = plain.split.lane
    return "\n".join(
        [
            f"- {report.machine.processor}, {report.machine.cores} cores; {plan.model.name}, {plan.threads} threads.",
            f"- {plan.streams} streams in a closed loop, prompts of {plan.workload.words} words, answers of "
            f"{plan.workload.output_tokens} tokens; {plan.seconds:g} s after {plan.warm_up:g} s of warm-up; "
            f"seed {plan.seed}.",
            "",
            "| the loop's thread, for each token | CPU time, µs |",
            "| --- | --- |",
            *(f"| {name} | {1e6 * probed.per_token(seconds):.1f} |" for name, seconds in rows),
            f"| all of it, without probes | {1e6 * plain.per_token(plain.split.loop):.1f} |",
            "",
            f"Encoding and sending should take {1e6 * LIMIT:.0f} µs at most. Requests are read and answers begun and "
            "ended in it too.",
            "",
            f"{plain.per_token(plain.writes):.3f} writes and {plain.per_token(plain.bytes):.0f} bytes for each token; "
            f"{lane.tokens_per_second:.0f} tokens/s in {lane.steps} steps of {lane.tokens / max(1, lane.steps):.1f} "
            f"tokens; the lane was idle for {100 * lane.idle_share:.1f} % of the time.",
        ]
    )

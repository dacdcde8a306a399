"""llamalane beside a llama-server that was built from the same sources: the same load on both in turn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import anyio

from llamalane.bench.exchange import Target
from llamalane.bench.load import ClosedLoop
from llamalane.bench.server import HOST, Server, free_port, run_server
from llamalane.bench.summary import LoadSummary
from llamalane.bench.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What both servers have in common: the model, the sequences that run at once, and the KV cells of each."""

    model: Path
    places: int
    cells: int
    device: str


@dataclass(frozen=True, slots=True)
class Round:
    """One load on one server, freshly started; `errors` counts the requests that failed."""

    server: str
    clients: int
    tokens_per_second: float
    errors: int


def measure_throughput(
    setup: Setup, llama_server: Path, workload: Workload, *, clients: Sequence[int], rounds: int, seconds: float
) -> list[Round]:
    """Put each load on each server, `rounds` times in turn, for so many seconds after as long a warm-up."""
    seeds = random.Random(1)
    results = []
    for count in clients:
        for _ in range(rounds):
            seed = seeds.getrandbits(32)
            for name in ("llamalane", "llama-server"):
                with _serve(name, setup, llama_server) as server:
                    load = anyio.run(_load, server.target(), workload, count, seed, seconds)
                results.append(Round(name, count, load.tokens_per_second or 0.0, sum(load.errors.values())))
    return results


async def _load(target: Target, workload: Workload, clients: int, seed: int, seconds: float) -> LoadSummary:
    loop = ClosedLoop(target, workload, clients=clients, seed=seed)
    return (await loop.run(seconds=2 * seconds, warm_up=seconds)).summary()


def _serve(name: str, setup: Setup, llama_server: Path) -> AbstractContextManager[Server]:
    port = free_port()
    cells = str(setup.places * setup.cells)
    if name == "llamalane":
        numbers = [f"--places={setup.places}", f"--kv-cells={cells}", f"--device={setup.device}"]
        return run_server(
            ["-m", "llamalane", "serve", str(setup.model), f"--host={HOST}", f"--port={port}", *numbers], port
        )
    layers = "0" if setup.device == "cpu" else "999"
    options = ["--host", HOST, "--port", str(port), "-np", str(setup.places), "-c", cells, "-ngl", layers]
    return run_server(["-m", str(setup.model), *options], port, program=llama_server)


def throughput_markdown(rounds: Sequence[Round]) -> str:
    """Write the medians as a table."""
    lines = ["| clients | server | tokens/s, median | rounds | failed requests |", "| --- | --- | --- | --- | --- |"]
    for clients, server in dict.fromkeys((one.clients, one.server) for one in rounds):
        same = [one for one in rounds if (one.clients, one.server) == (clients, server)]
        rate = median(one.tokens_per_second for one in same)
        failed = sum(one.errors for one in same)
        lines.append(f"| {clients} | {server} | {rate:.0f} | {len(same)} | {failed} |")
    return "\n".join(lines)

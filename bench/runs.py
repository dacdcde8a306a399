"""What the commands do: look at the machine, measure, and print the report."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from llamalane.bench.machine import BUSY_CORES, Machine, describe_machine
from llamalane.bench.model import find_model
from llamalane.bench.neighbour import NeighbourPlan, measure_neighbour, neighbour_markdown
from llamalane.bench.peers.kinds import Peer, Setup
from llamalane.bench.peers.traffic import workload
from llamalane.bench.report import to_json, urgent_markdown
from llamalane.bench.urgent import UrgentPlan, measure_urgent
from llamalane.bench.workload import Span, Workload
from llamalane.errors import LlamalaneError
from llamalane.streams.cores import available_cores

__all__ = [
    "chosen_seed",
    "exact_workload",
    "measure_beside_a_neighbour",
    "measure_urgent_requests",
    "quiet_machine",
    "setup",
    "tell",
    "workload",
]


def measure_urgent_requests(
    *,
    server: str,
    setup: Setup,
    background: Workload,
    urgent: Workload,
    clients: int,
    tries: int,
    reserve: int,
    seed: int | None,
    json_file: Path | None,
    busy_ok: bool,
) -> None:
    """Measure urgent requests on an idle and on a busy server, and print the table."""
    plan = UrgentPlan(
        peer=Peer(server),
        setup=setup,
        reserve=reserve,
        clients=clients,
        background=background,
        urgent=urgent,
        tries=tries,
        seed=chosen_seed(seed),
    )
    machine = quiet_machine(busy_ok)
    result = measure_urgent(plan, machine, lambda name, wait: tell(f"{name}: first token in {wait:.3f} s"))
    print(urgent_markdown(result))
    if json_file is not None:
        json_file.write_text(to_json(result))


def measure_beside_a_neighbour(
    *,
    setup: Setup,
    llama_server: Path | None,
    workload: Workload,
    clients: int,
    rounds: int,
    seconds: float,
    seed: int | None,
    json_file: Path | None,
    busy_ok: bool,
) -> int:
    """Measure servers beside a busy process, print the table, and return how many requests failed."""
    plan = NeighbourPlan(
        setup=setup,
        llama_server=llama_server,
        workload=workload,
        clients=clients,
        rounds=rounds,
        seconds=seconds,
        seed=chosen_seed(seed),
    )
    result = measure_neighbour(plan, quiet_machine(busy_ok), tell)
    print(neighbour_markdown(result))
    if json_file is not None:
        json_file.write_text(to_json(result))
    return sum(one.errors for one in result.rounds)


def setup(model: Path | None, places: int, threads: int | None, cells: int, *, queue: int | None = None) -> Setup:
    """Return what the servers have in common; without `threads` there is one for each core."""
    count = threads or len(available_cores())
    return Setup(model=find_model(model), places=places, threads=count, cells=cells, queue=queue)


def exact_workload(words: int, tokens: int) -> Workload:
    """Return a workload with exactly these lengths."""
    return Workload(words=Span(words, words), output_tokens=Span(tokens, tokens))


def quiet_machine(busy_ok: bool) -> Machine:
    """Describe the machine; raises `LlamalaneError` when it is busy, unless that is all right."""
    machine = describe_machine()
    if machine.busy > BUSY_CORES:
        what = f"other processes use {machine.busy:.2f} of {machine.cores} cores"
        if not busy_ok:
            raise LlamalaneError(f"{what}: end them, or measure all the same with --busy-ok")
        tell(f"WARNING: {what}; the numbers will say little")
    return machine


def chosen_seed(seed: int | None) -> int:
    """Return the seed, a new one if none is given."""
    return secrets.randbits(32) if seed is None else seed


def tell(line: str) -> None:
    """Tell of the progress, beside the report."""
    print(line, file=sys.stderr, flush=True)

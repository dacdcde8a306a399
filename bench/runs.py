"""What the commands do: look at the machine, measure, and print the report."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from llamalane.bench.comparison import ComparisonPlan, compare
from llamalane.bench.machine import BUSY_CORES, Machine, describe_machine
from llamalane.bench.model import find_model
from llamalane.bench.neighbour import NeighbourPlan, measure_neighbour, neighbour_markdown
from llamalane.bench.peers import Peer, Setup
from llamalane.bench.report import comparison_markdown, measurement_line, to_json, urgent_markdown
from llamalane.bench.urgent import UrgentPlan, measure_urgent
from llamalane.bench.workload import Span, Workload
from llamalane.errors import LlamalaneError
from llamalane.streams.cores import available_cores

_SPREAD = 0.3


def compare_peers(
    *,
    setup: Setup,
    workload: Workload,
    chat: bool,
    clients: tuple[int, ...],
    rounds: int,
    seconds: float,
    warm_up: float,
    seed: int | None,
    json_file: Path | None,
    busy_ok: bool,
) -> int:
    """Compare llamalane with its peer, print the tables, and return how many requests failed."""
    plan = ComparisonPlan(
        setup=setup,
        workload=workload,
        chat=chat,
        clients=clients,
        rounds=rounds,
        seconds=seconds,
        warm_up=warm_up,
        seed=_seed(seed),
    )
    machine = _quiet_machine(busy_ok)
    comparison = compare(plan, machine, lambda measurement: _tell(measurement_line(measurement)))
    print(comparison_markdown(comparison))
    if json_file is not None:
        json_file.write_text(to_json(comparison))
    return comparison.errors


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
        seed=_seed(seed),
    )
    machine = _quiet_machine(busy_ok)
    result = measure_urgent(plan, machine, lambda name, wait: _tell(f"{name}: first token in {wait:.3f} s"))
    print(urgent_markdown(result))
    if json_file is not None:
        json_file.write_text(to_json(result))


def measure_beside_a_neighbour(
    *,
    setup: Setup,
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
        setup=setup, workload=workload, clients=clients, rounds=rounds, seconds=seconds, seed=_seed(seed)
    )
    result = measure_neighbour(plan, _quiet_machine(busy_ok), _tell)
    print(neighbour_markdown(result))
    if json_file is not None:
        json_file.write_text(to_json(result))
    return sum(one.errors for one in result.rounds)


def setup(model: Path | None, places: int, threads: int | None, cells: int) -> Setup:
    """Return what the servers have in common; without `threads` there is one for each core."""
    return Setup(model=find_model(model), places=places, threads=threads or len(available_cores()), cells=cells)


def workload(words: int, tokens: int) -> Workload:
    """Return a workload with these means, whose lengths spread around them."""
    return Workload(words=Span.around(words, _SPREAD), output_tokens=Span.around(tokens, _SPREAD))


def exact_workload(words: int, tokens: int) -> Workload:
    """Return a workload with exactly these lengths."""
    return Workload(words=Span(words, words), output_tokens=Span(tokens, tokens))


def _quiet_machine(busy_ok: bool) -> Machine:
    machine = describe_machine()
    if machine.busy > BUSY_CORES:
        what = f"other processes use {machine.busy:.2f} of {machine.cores} cores"
        if not busy_ok:
            raise LlamalaneError(f"{what}: end them, or measure all the same with --busy-ok")
        _tell(f"WARNING: {what}; the numbers will say little")
    return machine


def _seed(seed: int | None) -> int:
    return secrets.randbits(32) if seed is None else seed


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

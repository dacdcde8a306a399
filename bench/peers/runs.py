"""What the command does: choose servers and load, look at the machine, measure, and write the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llamalane.bench import runs
from llamalane.bench.peers.contestants import Contestant, LocalServer, RemoteServer
from llamalane.bench.peers.kinds import Arrivals, Peer, Setup, Traffic
from llamalane.bench.peers.measuring import compare
from llamalane.bench.peers.output import comparison_markdown, write_folder
from llamalane.bench.peers.plan import ComparisonPlan, Load
from llamalane.bench.peers.traffic import make_source
from llamalane.bench.report import to_json
from llamalane.bench.simulator.plots import load_pyplot
from llamalane.bench.summary import Objective
from llamalane.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for; `ComparisonPlan` says what most of it means."""

    setup: Setup
    peers: tuple[Peer, ...]
    llama_server: Path | None
    examples_server: Path | None
    urls: Mapping[str, str]
    traffic: Traffic
    words: int | None
    tokens: int | None
    chat: bool
    arrivals: Arrivals
    clients: tuple[int, ...]
    rates: tuple[float, ...]
    shares: tuple[float, ...]
    rounds: int
    seconds: float
    warm_up: float
    slo_ttft: float | None
    slo_itl: float | None
    seed: int | None
    busy_ok: bool


def compare_servers(wanted: Wanted, *, json_file: Path | None, out: Path | None) -> int:
    """Compare the servers, print the tables, write what is wanted, and return how many requests failed."""
    plan = make_plan(wanted)
    if out is not None:
        load_pyplot()  # better found missing now than when all is measured
    machine = runs.quiet_machine(wanted.busy_ok)
    comparison = compare(plan, machine, runs.tell)
    print(comparison_markdown(comparison))
    if json_file is not None:
        json_file.write_text(to_json(comparison))
    for file in write_folder(comparison, out) if out is not None else ():
        runs.tell(str(file))
    return comparison.errors


def make_plan(wanted: Wanted) -> ComparisonPlan:
    """Return what is to be measured."""
    objective = None
    if wanted.slo_ttft is not None or wanted.slo_itl is not None:
        objective = Objective(first_token=wanted.slo_ttft, inter_token=wanted.slo_itl)
    return ComparisonPlan(
        setup=wanted.setup,
        contestants=tuple(_contestants(wanted)),
        source=make_source(wanted.traffic, wanted.words, wanted.tokens),
        chat=wanted.chat,
        loads=_loads(wanted),
        shares=wanted.shares,
        rounds=wanted.rounds,
        seconds=wanted.seconds,
        warm_up=wanted.warm_up,
        seed=runs.chosen_seed(wanted.seed),
        objective=objective,
    )


def _contestants(wanted: Wanted) -> list[Contestant]:
    programs = {Peer.LLAMA_SERVER: wanted.llama_server, Peer.EXAMPLES_SERVER: wanted.examples_server}
    for peer, program in programs.items():
        option = f"--{peer.value}"
        if program is not None and not program.is_file():
            raise ConfigError(f"{option}: there is no file {program}")
        if program is None and peer in wanted.peers:
            raise ConfigError(f"{peer.value} needs {option} PATH")
    peers = dict.fromkeys([*wanted.peers, *(peer for peer, program in programs.items() if program is not None)])
    local = [LocalServer(peer, wanted.setup, programs.get(peer)) for peer in peers]
    return [*local, *(RemoteServer(name, url) for name, url in wanted.urls.items())]


def _loads(wanted: Wanted) -> tuple[Load, ...]:
    if wanted.arrivals is Arrivals.CLOSED:
        return tuple(Load(wanted.arrivals, count) for count in wanted.clients)
    return tuple(Load(wanted.arrivals, rate) for rate in wanted.rates)

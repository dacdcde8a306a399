"""What a busy process beside it leaves of a server's speed, and what the server leaves to that process."""

from __future__ import annotations

import enum
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import psutil

from llamalane.bench.document import Table, spread, table_lines
from llamalane.bench.load import ClosedLoop
from llamalane.bench.machine import Machine
from llamalane.bench.peers.builds import build_of
from llamalane.bench.peers.kinds import Peer, Setup
from llamalane.bench.peers.starting import serve
from llamalane.bench.report import machine_lines, setup_line, source_line
from llamalane.bench.summary import LoadSummary
from llamalane.bench.workload import Workload
from llamalane.errors import LlamalaneError
from llamalane.streams.llama.library import SPIN_COUNT

WARM_UP = 3.0
"""Seconds under load that do not count, without the busy process and with it."""
_NEIGHBOUR = "while True: pass"


class Contestant(enum.Enum):
    """A server that is measured."""

    LLAMALANE = "llamalane"
    DEFAULT = "llama-server"
    BOUNDED = f"llama-server, GOMP_SPINCOUNT={SPIN_COUNT}"
    """With the spin count that llamalane sets: the rest of the difference is something else's doing."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What is set for it."""
        return {"GOMP_SPINCOUNT": SPIN_COUNT} if self is Contestant.BOUNDED else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourPlan:
    """What is measured.

    Attributes:
        setup: the servers.
        llama_server: its executable; None for the one of the wheel `xllamacpp`.
        workload: what each client asks for.
        clients: how many of them, in a closed loop.
        rounds: how often each server is measured.
        seconds: how long, after its warm-up, without the busy process and with it.
        seed: chooses the prompts; each round has its own, the same for all.
    """

    setup: Setup
    llama_server: Path | None = None
    workload: Workload
    clients: int
    rounds: int
    seconds: float
    seed: int

    def peer(self, contestant: Contestant) -> Peer:
        """Return which program a server is."""
        if contestant is Contestant.LLAMALANE:
            return Peer.LLAMALANE
        return Peer.XLLAMACPP if self.llama_server is None else Peer.LLAMA_SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourRound:
    """One server, freshly started; rates are in tokens per second.

    Attributes:
        alone: its rate without the busy process.
        beside: its rate beside it.
        neighbour: how much of a core the busy process got meanwhile.
        errors: requests that failed.
    """

    contestant: Contestant
    round: int
    alone: float
    beside: float
    neighbour: float
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourResult:
    """All rounds, in the order in which they were measured."""

    plan: NeighbourPlan
    machine: Machine
    builds: dict[str, str]
    rounds: tuple[NeighbourRound, ...]

    def of(self, contestant: Contestant) -> list[NeighbourRound]:
        """Return one server's measurements, round by round."""
        return [one for one in self.rounds if one.contestant is contestant]

    def ratios(self, contestant: Contestant) -> list[float]:
        """Return, of each round, llamalane's rate beside the busy process as a multiple of another server's."""
        pairs = zip(self.of(Contestant.LLAMALANE), self.of(contestant), strict=True)
        return [ours.beside / theirs.beside for ours, theirs in pairs if theirs.beside]


def measure_neighbour(plan: NeighbourPlan, machine: Machine, tell: Callable[[str], None]) -> NeighbourResult:
    """Carry out `plan`; another server begins in each round. Raises `LlamalaneError` where OpenMP's spin is set."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        if name in machine.settings:
            raise LlamalaneError(f"{name} is set, so that no server would have its defaults: unset it")
    peers = {plan.peer(contestant) for contestant in Contestant}
    builds = {peer.value: build_of(peer, plan.llama_server) for peer in sorted(peers, key=lambda peer: peer.value)}
    seeds = random.Random(plan.seed)
    rounds = []
    order = list(Contestant)
    for number in range(1, plan.rounds + 1):
        seed = seeds.getrandbits(32)
        for contestant in order:
            rounds.append(_measure(plan, contestant, number, seed))
            tell(_line(rounds[-1]))
        order = [*order[1:], order[0]]
    return NeighbourResult(plan=plan, machine=machine, builds=builds, rounds=tuple(rounds))


def neighbour_markdown(result: NeighbourResult) -> str:
    """Return the medians over the rounds as a table, then every round."""
    plan = result.plan
    return "\n".join(
        [
            *(f"- {line}" for line in machine_lines(result.machine, result.builds)),
            f"- {setup_line(plan.setup)}",
            f"- {source_line(f'Each of {plan.clients} clients', plan.workload, 'completion')}",
            f"- {plan.rounds} rounds in changing order, each server freshly started; {plan.seconds:g} s without and "
            f"{plan.seconds:g} s beside one busy process, each after {WARM_UP:g} s of warm-up; seed {plan.seed}.",
            "",
            *table_lines(
                Table.of(
                    [
                        "server",
                        "alone, tokens/s",
                        "beside, tokens/s",
                        "left of it",
                        "llamalane's multiple",
                        "neighbour",
                    ],
                    (_summary_row(result, contestant) for contestant in Contestant),
                )
            ),
            "",
            "Medians over the rounds, ranges in brackets. The multiple is that of llamalane's rate beside the busy "
            "process, within a round; the last column is what the busy process got, in cores.",
            "",
            *table_lines(
                Table.of(
                    ["round", "server", "alone", "beside", "neighbour, cores", "errors"],
                    (
                        [
                            one.round,
                            one.contestant.value,
                            f"{one.alone:.1f}",
                            f"{one.beside:.1f}",
                            f"{one.neighbour:.2f}",
                            one.errors,
                        ]
                        for one in result.rounds
                    ),
                )
            ),
        ]
    )


def _summary_row(result: NeighbourResult, contestant: Contestant) -> list[str]:
    rounds = result.of(contestant)
    return [
        contestant.value,
        _spread([one.alone for one in rounds], ".1f"),
        _spread([one.beside for one in rounds], ".1f"),
        _spread([one.beside / one.alone for one in rounds if one.alone], ".0%"),
        _spread(result.ratios(contestant), ".2f"),
        _spread([one.neighbour for one in rounds], ".2f"),
    ]


def _spread(values: list[float], form: str) -> str:
    if not values:
        return "n/a"
    return spread(values, form)


def _line(one: NeighbourRound) -> str:
    return (
        f"round {one.round}, {one.contestant.value}: {one.alone:.1f} tokens/s alone, {one.beside:.1f} beside a busy "
        f"process, which got {one.neighbour:.2f} cores; {one.errors} errors"
    )


def _measure(plan: NeighbourPlan, contestant: Contestant, number: int, seed: int) -> NeighbourRound:
    peer = plan.peer(contestant)
    with serve(peer, plan.setup, contestant.environment, program=plan.llama_server) as server:

        async def load(load_seed: int) -> LoadSummary:
            loop = ClosedLoop(server.target(), plan.workload, clients=plan.clients, seed=load_seed)
            return (await loop.run(seconds=WARM_UP + plan.seconds, warm_up=WARM_UP)).summary()

        alone = anyio.run(load, seed)
        with busy_process() as got:
            beside = anyio.run(load, seed + 1)
            neighbour = got()
    return NeighbourRound(
        contestant=contestant,
        round=number,
        alone=alone.tokens_per_second or 0.0,
        beside=beside.tokens_per_second or 0.0,
        neighbour=neighbour,
        errors=sum(alone.errors.values()) + sum(beside.errors.values()),
    )


@contextmanager
def busy_process() -> Iterator[Callable[[], float]]:
    """Keep a process busy on one core; what is given tells how much of a core it has had since it began."""
    process = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR])
    try:
        watched = psutil.Process(process.pid)
        watched.cpu_percent()  # begins to count
        yield lambda: watched.cpu_percent() / 100
    finally:
        process.kill()
        process.wait()

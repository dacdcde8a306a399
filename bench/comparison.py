"""llamalane beside a peer: the same load on both in turn, round after round."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import anyio

from llamalane.bench.load import ClosedLoop
from llamalane.bench.machine import CpuMeter, CpuShares, Machine
from llamalane.bench.peers import Peer, Setup, build_of, serve
from llamalane.bench.summary import LoadSummary
from llamalane.bench.workload import Workload

ORDER = (Peer.LLAMALANE, Peer.XLLAMACPP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    """What is measured.

    Attributes:
        setup: the servers.
        workload: what each client asks for.
        chat: whether it asks for chat completions.
        clients: how many clients, for each load to be measured.
        rounds: how often each load is put on each server.
        seconds: how long a measurement lasts after its warm-up.
        warm_up: seconds before that, under the same load, which do not count.
        seed: chooses the prompts; each round has its own, the same for both servers.
    """

    setup: Setup
    workload: Workload
    chat: bool
    clients: tuple[int, ...]
    rounds: int
    seconds: float
    warm_up: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One load on one server, freshly started."""

    peer: Peer
    clients: int
    round: int
    load: LoadSummary
    cpu: CpuShares

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens for each second; 0 when nothing came."""
        return self.load.tokens_per_second or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All measurements of a plan, in the order in which they were made."""

    plan: ComparisonPlan
    machine: Machine
    builds: dict[str, str]
    measurements: tuple[Measurement, ...]

    @property
    def errors(self) -> int:
        """How many requests failed."""
        return sum(sum(measurement.load.errors.values()) for measurement in self.measurements)

    def of(self, peer: Peer, clients: int) -> list[Measurement]:
        """Return one server's measurements under one load, round by round."""
        return [one for one in self.measurements if one.peer is peer and one.clients == clients]

    def ratios(self, clients: int) -> list[float]:
        """Return each round's tokens per second of llamalane as a multiple of the peer's."""
        pairs = zip(*(self.of(peer, clients) for peer in ORDER), strict=True)
        return [ours.tokens_per_second / theirs.tokens_per_second for ours, theirs in pairs if theirs.tokens_per_second]

    def median_rate(self, peer: Peer, clients: int) -> float:
        """Return the median over the rounds of one server's tokens per second."""
        return median(one.tokens_per_second for one in self.of(peer, clients))


def compare(plan: ComparisonPlan, machine: Machine, tell: Callable[[Measurement], None]) -> Comparison:
    """Carry out `plan`, telling each measurement as soon as it is made."""
    builds = {peer.value: build_of(peer) for peer in ORDER}
    seeds = random.Random(plan.seed)
    measurements = []
    for clients in plan.clients:
        for number in range(1, plan.rounds + 1):
            seed = seeds.getrandbits(32)
            for peer in ORDER:
                measurement = _measure(plan, peer, clients, number, seed)
                measurements.append(measurement)
                tell(measurement)
    return Comparison(plan=plan, machine=machine, builds=builds, measurements=tuple(measurements))


def _measure(plan: ComparisonPlan, peer: Peer, clients: int, number: int, seed: int) -> Measurement:
    with serve(peer, plan.setup) as server:
        target = replace(server.target(), chat=plan.chat)
        meter = CpuMeter(server.pid)

        async def run() -> LoadSummary:
            loop = ClosedLoop(target, plan.workload, clients=clients, seed=seed)
            result = await loop.run(seconds=plan.warm_up + plan.seconds, warm_up=plan.warm_up)
            return result.summary()

        load = anyio.run(run)
        return Measurement(peer=peer, clients=clients, round=number, load=load, cpu=meter.read())

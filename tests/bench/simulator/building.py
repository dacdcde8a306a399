"""Small machines, policies and arrivals for the tests of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from llamalane.bench.simulator.machine import Machine
from llamalane.bench.simulator.outcomes import Outcomes
from llamalane.bench.simulator.passes import Pass
from llamalane.bench.simulator.policies import Ours, Policy, RoundRobin, Sorted, by_level, first_come, shortest
from llamalane.bench.simulator.request import Picoseconds, SimulatedRequest
from llamalane.bench.simulator.simulation import Simulation
from llamalane.ids import Level, RequestId
from llamalane.scheduler.admission import AdmissionPolicy
from llamalane.scheduler.displacement import DisplacementPolicy
from llamalane.scheduler.fairness import Weights
from llamalane.scheduler.growth import GrowthPredictor
from llamalane.scheduler.limits import TenantLimit
from llamalane.scheduler.parking import ParkingCosts
from llamalane.scheduler.priority import LEVELS, Aging
from llamalane.scheduler.queue import QueueBounds
from llamalane.scheduler.rules import Rules
from llamalane.scheduler.stowage import Stowage

MILLISECOND: Picoseconds = 10**9
UNBOUNDED = 10**9


class LinearSpeed:
    """A pass takes `base`, and more for each token and each cell; a step takes more for each row that gains a token."""

    def __init__(
        self,
        base: Picoseconds = 20 * MILLISECOND,
        row: Picoseconds = MILLISECOND,
        token: Picoseconds = MILLISECOND // 2,
        cell: Picoseconds = 0,
    ) -> None:
        self.growth = cell
        self._base = base
        self._row = row
        self._token = token

    def step(self, passes: Iterable[Pass], outputs: int) -> Picoseconds:
        times = [self._base + self._token * one.tokens + self.growth * one.cells for one in passes]
        return sum(times) + self._row * outputs


@dataclass(frozen=True)
class Arrival:
    """What a test says of a request; `at` is in milliseconds."""

    at: int
    level: int = 3
    prompt: int = 8
    output: int = 4
    tenant: str = ""


def requests(arrivals: Sequence[Arrival]) -> list[SimulatedRequest]:
    """Make the requests anew: a simulation uses them up."""
    return [
        SimulatedRequest(
            id=RequestId(f"request-{number}"),
            arrival=arrival.at * MILLISECOND,
            level=Level(arrival.level),
            prompt_tokens=arrival.prompt,
            output_tokens=arrival.output,
            tenant=arrival.tenant,
        )
        for number, arrival in enumerate(sorted(arrivals, key=lambda arrival: arrival.at))
    ]


def rules(
    machine: Machine,
    *,
    share: int = 10,
    reserve: dict[Level, int] | None = None,
    max_parks: int = 3,
    abort_after: float | None = None,
) -> Rules:
    costs = ParkingCosts(swap_bytes=UNBOUNDED)
    return Rules(
        aging=Aging(ceiling=3, interval=2.0),
        admission=AdmissionPolicy(share, reserve or {}),
        displacement=DisplacementPolicy(max_parks),
        costs=costs,
        stowage=Stowage(costs, least_tokens=UNBOUNDED),
        growth=GrowthPredictor(),
        targets=machine.targets,
        abort_after=abort_after,
        bounds=QueueBounds(UNBOUNDED, UNBOUNDED),
        limits={},
        default_limit=TenantLimit(),
        weights=Weights(),
    )


def ours(machine: Machine) -> Policy:
    return Ours(rules(machine, abort_after=0.01))


def first_come_first_served() -> Policy:
    return Sorted(first_come, max_requests=UNBOUNDED)


MakePolicy = Callable[[Machine], Policy]
POLICIES: dict[str, MakePolicy] = {
    "ours": ours,
    "first come": lambda machine: first_come_first_served(),
    "by level": lambda machine: Sorted(by_level, max_requests=UNBOUNDED),
    "round robin": lambda machine: RoundRobin(max_requests=UNBOUNDED),
    "shortest": lambda machine: Sorted(shortest, max_requests=UNBOUNDED),
}


def simulate(
    machine: Machine, policy: Policy, arrivals: Sequence[SimulatedRequest], *, longest_run: int | None = None
) -> Outcomes:
    return Simulation(machine, policy, iter(arrivals), longest_run=longest_run).run()


def by_arrival(outcomes: Outcomes) -> Iterator[tuple[float, float, float, float]]:
    """The moments of each request, in the order of their arrivals."""
    rows = zip(outcomes.arrival, outcomes.admitted, outcomes.first_token, outcomes.ended, strict=True)
    return iter(sorted((float(a), float(b), float(c), float(d)) for a, b, c, d in rows))


machines = st.builds(
    Machine,
    places=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    speed=st.builds(
        LinearSpeed,
        base=st.integers(1, 30).map(lambda count: count * MILLISECOND),
        row=st.integers(0, 3).map(lambda count: count * MILLISECOND),
        token=st.integers(0, 4).map(lambda count: count * MILLISECOND // 4),
        cell=st.sampled_from([0, 0, 7, MILLISECOND // 50]),
    ),
    max_step_tokens=st.sampled_from([4, 16, 64, 512]),
    targets=st.sampled_from([0.01, 0.05, 0.15]).map(lambda target: dict.fromkeys(LEVELS, target)),
    spare=st.sampled_from([None, 1, 2]),
    micro_batch=st.sampled_from([16, 512]),
    can_abandon=st.booleans(),
)
"""Small machines, on which moments often coincide."""


def arrivals_of(levels: Sequence[int] = LEVELS, tenants: Sequence[str] = ("",)) -> st.SearchStrategy[list[Arrival]]:
    return st.lists(
        st.builds(
            Arrival,
            at=st.integers(0, 400),
            level=st.sampled_from(levels),
            prompt=st.one_of(st.integers(1, 8), st.integers(1, 300)),
            output=st.one_of(st.integers(1, 4), st.integers(1, 40)),
            tenant=st.sampled_from(tenants),
        ),
        min_size=1,
        max_size=20,
    )

"""What is measured of the servers, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from llamalane.bench.latencies import Latencies
from llamalane.bench.machine import BUSY_CORES, CpuShares, Machine
from llamalane.bench.peers.contestants import Contestant
from llamalane.bench.peers.kinds import Arrivals, Setup
from llamalane.bench.summary import LoadSummary, Objective
from llamalane.bench.workload import Source


@dataclass(frozen=True, slots=True)
class Load:
    """How many clients there are in a closed loop, or how many requests arrive in a second."""

    arrivals: Arrivals
    amount: float

    def __str__(self) -> str:
        if self.arrivals is Arrivals.POISSON:
            return f"{self.amount:.2f} requests/s"
        return f"{self.amount:g} client{'s' if self.amount != 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    """What is measured.

    Attributes:
        setup: the servers started here.
        contestants: the servers, of which the first one is compared with each of the others.
        source: what the clients ask for.
        chat: whether they ask for chat completions.
        loads: each is put on every server.
        shares: without `loads`, requests arrive at these shares of the highest rate that any of the servers answers.
        rounds: how often each load is put on each server.
        seconds: how long a measurement lasts after its warm-up.
        warm_up: seconds before that, under the same load, which do not count.
        seed: chooses the requests; each round has its own, the same for all servers.
        objective: what a request has to see to count for goodput; None counts none.
    """

    setup: Setup
    contestants: tuple[Contestant, ...]
    source: Source
    chat: bool
    loads: tuple[Load, ...]
    rounds: int
    seconds: float
    warm_up: float
    seed: int
    objective: Objective | None = None
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a server and its processes in bytes: when the window starts, in its middle, and at the end of
    the run.
    """

    start: int
    middle: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One load on one server, freshly started if it is started here.

    Attributes:
        summary: the run in numbers; `latencies` are those that it sums up.
        classes: each class of requests by itself, if there are several.
        memory: None where the server's processes are not known.
    """

    contestant: str
    load: Load
    round: int
    summary: LoadSummary
    latencies: Latencies
    cpu: CpuShares
    classes: dict[str, LoadSummary] = field(default_factory=dict)
    memory: Memory | None = None

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens for each second; 0 when nothing came."""
        return self.summary.tokens_per_second or 0.0

    @property
    def disturbed(self) -> bool:
        """Whether other work took some of the processor; not known beside a server that may be that work."""
        return self.cpu.server is not None and self.cpu.others + self.cpu.stolen > BUSY_CORES


@dataclass(frozen=True, slots=True)
class Spread:
    """The rounds' values: their median, quartiles and range."""

    median: float
    low: float
    high: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Sum up `values`; None when there are none."""
        if not values:
            return None
        low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
        return cls(median(values), low, high, min(values), max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All measurements of a plan, in the order in which they were made."""

    plan: ComparisonPlan
    machine: Machine
    builds: dict[str, str]
    measurements: tuple[Measurement, ...]

    @property
    def names(self) -> list[str]:
        """What the servers are called, the one first that the others are compared with."""
        return [contestant.name for contestant in self.plan.contestants]

    @property
    def loads(self) -> list[Load]:
        """The loads in order."""
        return list(dict.fromkeys(one.load for one in self.measurements))

    @property
    def classes(self) -> list[str]:
        """The classes of requests; none if there is only one."""
        return list(dict.fromkeys(name for one in self.measurements for name in one.classes))

    @property
    def errors(self) -> int:
        """How many requests failed; refused ones are none of them."""
        return sum(sum(measurement.summary.errors.values()) for measurement in self.measurements)

    def of(self, name: str, load: Load) -> list[Measurement]:
        """Return one server's measurements under one load, round by round."""
        return sorted(
            (one for one in self.measurements if one.contestant == name and one.load == load),
            key=lambda one: one.round,
        )

    def latencies(self, name: str, load: Load) -> Latencies:
        """Return the latencies of all rounds together."""
        return Latencies.together([one.latencies for one in self.of(name, load)])

    def ratios(self, other: str, load: Load, value: Callable[[Measurement], float | None]) -> list[float]:
        """Return each round's value of the first server as a multiple of another one's, where both have one."""
        pairs = zip(self.of(self.names[0], load), self.of(other, load), strict=True)
        values = ((value(ours), value(theirs)) for ours, theirs in pairs)
        return [ours / theirs for ours, theirs in values if ours is not None and theirs]


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of those that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None

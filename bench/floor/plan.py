"""What is measured, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llamalane.bench.floor.probes import Split
from llamalane.bench.floor.times import LaneTimes
from llamalane.bench.machine import BUSY_CORES, Machine
from llamalane.bench.workload import Workload

ENGINE, SERVER = "engine", "HTTP"
"""What those are called that are measured beside the floors."""
SEQUENCE_CELLS = 512
"""KV cells for each sequence: enough for a prompt and its answer."""
CLIENTS = 2
"""Clients for each sequence: somebody waits, as with the floor, which always has another prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorPlan:
    """What is measured.

    Attributes:
        sequences: how many run at once; each number is measured by itself.
        chunks: how many prompt tokens a step of the floor may compute; each number is a floor of its own.
        http: whether the server is measured over HTTP too.
        split: whether it is told at the end where the time of engine and server goes.
        rounds: how often each is measured.
        seconds: how long each time.
        warm_up: seconds under load that go before.
        seed: chooses the prompts; each round has its own, the same for all.
    """

    model: Path
    threads: int
    workload: Workload
    sequences: tuple[int, ...]
    chunks: tuple[int, ...]
    http: bool
    split: bool
    rounds: int
    seconds: float
    warm_up: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measurement.

    Attributes:
        tokens_per_second: what arrived; `lane` counts what was chosen.
        others: CPU that other processes used, and that the hypervisor took, in cores.
    """

    what: str
    round: int
    tokens_per_second: float
    lane: LaneTimes
    others: float

    @property
    def quiet(self) -> bool:
        """Whether other work left the processor alone."""
        return self.others <= BUSY_CORES


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorResult:
    """All that was measured of so many sequences. `splits` tell where the time went, by what was looked into."""

    sequences: int
    runs: tuple[Run, ...]
    splits: dict[str, Split]

    @property
    def names(self) -> list[str]:
        """What was measured."""
        return list(dict.fromkeys(run.what for run in self.runs))

    @property
    def rounds(self) -> list[int]:
        """The numbers of the rounds."""
        return sorted({run.round for run in self.runs})

    @property
    def quiet(self) -> list[int]:
        """The rounds in which other work left the processor alone."""
        return [number for number in self.rounds if all(run.quiet for run in self.runs if run.round == number)]

    def counting(self, what: str) -> list[Run]:
        """Return one of them's runs that count, round by round: of all rounds, unless some were quiet."""
        rounds = self.quiet or self.rounds
        return sorted((run for run in self.runs if run.what == what and run.round in rounds), key=lambda run: run.round)

    def ratios(self, what: str) -> list[float]:
        """Return tokens per second as a share of the quickest floor's in the same round, round by round."""
        floors = zip(*(self.counting(name) for name in self.names if is_floor(name)), strict=True)
        quickest = [max(run.tokens_per_second for run in runs) for runs in floors]
        return [run.tokens_per_second / floor for run, floor in zip(self.counting(what), quickest, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorReport:
    """The results, and what they are of."""

    plan: FloorPlan
    machine: Machine
    results: tuple[FloorResult, ...]


def floor_name(chunk: int) -> str:
    """Return what the floor is called whose steps compute so many prompt tokens at most."""
    return f"floor, chunks of {chunk}"


def is_floor(what: str) -> bool:
    """Return whether that is a floor's name."""
    return what not in (ENGINE, SERVER)

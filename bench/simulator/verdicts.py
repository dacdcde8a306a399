"""Whether a simulation agrees with real runs of the same workload: the times to first token of each level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from llamalane.bench.simulator.measures import LevelMeasures, Measures

TOLERANCE = 0.15
"""The simulated time may differ by this share of the real one, or by as much as real runs differ, if that is more."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One percentile of one level's times to first token, in seconds, simulated and in each of the real runs."""

    level: int
    percentile: str
    simulated: float
    real: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median of the real runs."""
        return median(self.real)

    @property
    def spread(self) -> float:
        """How far the real runs lie apart, from the shortest time to the longest."""
        return max(self.real) - min(self.real)

    @property
    def allowed(self) -> float:
        """How far the simulated time may be from the median of the real ones."""
        return max(TOLERANCE * self.middle, self.spread)

    @property
    def within(self) -> bool:
        """Whether it is no farther."""
        return abs(self.simulated - self.middle) <= self.allowed


def judge(simulated: Measures, real: Sequence[Measures]) -> Iterator[Verdict]:
    """Return the verdicts on the median and the 90th percentile of each level that all runs have; one at least."""
    runs = [{level.level: level for level in measures.levels} for measures in (simulated, *real)]
    for number in runs[0]:
        if all(number in run for run in runs):
            first, *others = [run[number] for run in runs]
            yield Verdict(number, "p50", _p50(first), tuple(_p50(level) for level in others))
            yield Verdict(number, "p90", _p90(first), tuple(_p90(level) for level in others))


def _p50(level: LevelMeasures) -> float:
    return level.first_token.p50


def _p90(level: LevelMeasures) -> float:
    return level.first_token.p90

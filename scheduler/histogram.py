"""Counts of values by their size, at the cost of a bisection for each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """A histogram at one moment.

    Attributes:
        bounds: the largest value of each bucket, in ascending order.
        counts: how many values fell into each bucket, and last how many are larger than all bounds.
        sum: all values added up.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    sum: float = 0.0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Go through the bounds, each with the number of values that do not exceed it; the last bound is infinite."""
        yield from zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True)


NOTHING = HistogramSnapshot()
"""No values, and no buckets for any."""


class Histogram:
    """Counts values in buckets; `bounds` are the largest value of each, in ascending order."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        if list(bounds) != sorted(set(bounds)):
            raise ValueError(f"the bounds of a histogram must ascend; got {list(bounds)}")
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value. O(log n) in the number of bounds."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramSnapshot:
        """Return the counts as they stand."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._sum)


def steps_of_1_2_5(most: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, 20, 50, … up to `most`: bounds for counts of tokens."""
    powers = (10**exponent for exponent in range(len(str(most))))
    return tuple(bound for power in powers for bound in (power, 2 * power, 5 * power) if bound <= most)

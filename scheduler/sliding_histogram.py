"""How long something took lately: the quantiles of durations over a span of time, at a fixed cost for each."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

SMALLEST = 1e-5
"""Shorter durations, in seconds, are not told apart."""
GROWTH = 1.05
"""Each bucket ends at so many times the end of the one before it; a quantile is off by half of that at most."""

_BUCKETS_PER_E = 1 / math.log(GROWTH)
_MIDDLE = math.sqrt(GROWTH)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The quantiles that were asked for, in seconds, of `count` durations; none when there was no duration."""

    count: int
    values: tuple[float, ...] = ()


class SlidingHistogram:
    """Counts durations in buckets over about the last `span` seconds, one part of it after the other.

    What it holds is bounded by the number of buckets, and not by that of durations. Time is passed in, and never goes
    back.
    """

    PARTS = 12
    """The span moves on by one part in so many."""

    def __init__(self, span: float) -> None:
        self._part_seconds = span / self.PARTS
        self._parts: deque[tuple[int, Counter[int]]] = deque()
        """The parts in which there was something, each with its number and the counts of its buckets."""

    def add(self, seconds: float, now: float) -> None:
        """Count a duration."""
        part = self._part(now)
        if not self._parts or self._parts[-1][0] != part:
            self._forget(part)
            self._parts.append((part, Counter()))
        self._parts[-1][1][_bucket(seconds)] += 1

    def quantiles(self, shares: Sequence[float], now: float) -> Quantiles:
        """Return for each of `shares` (more than 0, at most 1) what so many of the durations do not exceed."""
        self._forget(self._part(now))
        counts: Counter[int] = Counter()
        for _, part in self._parts:
            counts.update(part)
        total = counts.total()
        if not total:
            return Quantiles(0)
        buckets = sorted(counts.items())
        return Quantiles(total, tuple(_quantile(buckets, math.ceil(share * total)) for share in shares))

    def _part(self, now: float) -> int:
        return math.floor(now / self._part_seconds)

    def _forget(self, part: int) -> None:
        while self._parts and self._parts[0][0] <= part - self.PARTS:
            self._parts.popleft()


def _bucket(seconds: float) -> int:
    return math.ceil(math.log(seconds / SMALLEST) * _BUCKETS_PER_E) if seconds > SMALLEST else 0


def _quantile(buckets: Sequence[tuple[int, int]], rank: int) -> float:
    """Return about the value that is `rank`-th of all, from 1 on."""
    for bucket, count in buckets:
        rank -= count
        if rank <= 0:
            return SMALLEST * GROWTH**bucket / (_MIDDLE if bucket else 1.0)
    raise ValueError("there are fewer values than that")

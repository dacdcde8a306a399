"""What was seen lately of a number, such as the length of an output: recent values and their quantiles."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Generic, TypeVar

from llamalane.ids import Level

Number = TypeVar("Number", int, float)


class QuantileWindow(Generic[Number]):
    """The last `size` values of a number, from 1 on; the oldest makes room for the newest."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a window holds at least 1 value; got {size}")
        self._size = size
        self._recent: deque[Number] = deque()
        self._sorted: list[Number] = []

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def mean(self) -> float:
        """The mean of the values; there must be one."""
        return sum(self._sorted) / len(self._sorted)

    def add(self, value: Number) -> None:
        """Take in a value. Found by bisection; a list of some thousand moves quickly."""
        if len(self._recent) == self._size:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(value)
        insort(self._sorted, value)

    def quantile_above(self, floor: Number, share: float) -> Number | None:
        """Return the smallest value that `share` (more than 0, at most 1) of the values above `floor` do not exceed.

        None when no value is above `floor`. O(log n).
        """
        values = self._sorted
        first = bisect_right(values, floor)
        above = len(values) - first
        return values[first + math.ceil(share * above) - 1] if above else None


def likely_duration(window: QuantileWindow[float] | None, age: float, share: float, guess: float) -> float:
    """Return how long something takes in all that has taken `age` so far, if it is not among the longest.

    It is what `share` (more than 0, less than 1) of those in the window that took longer than `age` do not exceed. Of
    what has outlasted them all, half is thought to outlast their median by twice as much. Without a window, half is
    thought to take twice as long as `age` or `guess`, whichever is longer.
    """
    if window is None:
        return max(age, guess) / (1 - share)
    duration = window.quantile_above(age, share)
    if duration is not None:
        return duration
    median = window.quantile_above(-math.inf, 0.5)
    assert median is not None, "a window without values tells nothing"
    return median + (age - median) / (1 - share)


class LevelQuantiles(Generic[Number]):
    """A window for each level, and one for all levels together, for a level of which little was seen.

    Each holds `size` values, and is trusted from `enough` of them on, which are no more.
    """

    def __init__(self, size: int, enough: int) -> None:
        self._size = size
        self._enough = enough
        self._levels: dict[Level, QuantileWindow[Number]] = {}
        self._all: QuantileWindow[Number] = QuantileWindow(size)
        self._trusted: dict[Level, QuantileWindow[Number]] = {}
        self._fallback: QuantileWindow[Number] | None = None

    def add(self, level: Level, value: Number) -> None:
        """Take in a value of a level."""
        own = self._levels.get(level)
        if own is None:
            own = self._levels[level] = QuantileWindow(self._size)
        own.add(value)
        self._all.add(value)
        if len(own) == self._enough:
            self._trusted[level] = own
        if len(self._all) == self._enough:
            self._fallback = self._all

    def window(self, level: Level) -> QuantileWindow[Number] | None:
        """Return a level's window, or that of all levels while it is not to be trusted; None while neither is."""
        return self._trusted.get(level, self._fallback)

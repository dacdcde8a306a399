"""Work that a lane does in parts, with steps in between, and how much of it there is time for between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Parts: TypeAlias = Generator[None, None, T]
"""Work in parts: it pauses after each but the last, and returns what comes of it."""

LEAST_SECONDS = 0.010
"""Between two steps a lane spends so many seconds on its cells, at most,"""
STEP_SHARE = 0.5
"""or so much of a mean step, if that is more."""
_WEIGHT = 0.1
"""How much the newest step counts in a running mean."""


def seconds_between(mean_step: float) -> float:
    """Return how many seconds at most a lane whose steps take so long spends on its cells between two of them."""
    return max(LEAST_SECONDS, STEP_SHARE * mean_step)


def at_once(work: Parts[T]) -> T:
    """Do all parts of some work, and return what comes of it."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class Stopwatch:
    """Counts the seconds that work takes, without its pauses."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timing(self, work: Parts[T]) -> Parts[T]:
        """Do some work, and count what it takes."""
        while True:
            begin = time.monotonic()
            try:
                next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.seconds += time.monotonic() - begin
            yield


class Gap:
    """The time between two steps, of which work in parts takes only so much.

    A part is done at least, whatever it takes; and one more as long as it would not take too long if it took as long as
    the longest of this gap. `clock` counts seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mean_step = 0.0
        self._begin = self._last = clock()
        self._longest = 0.0

    @property
    def most(self) -> float:
        """How many seconds work in parts may take between two steps."""
        return seconds_between(self._mean_step)

    def observe_step(self, seconds: float) -> None:
        """Take note of how long a step took."""
        self._mean_step += _WEIGHT * (seconds - self._mean_step) if self._mean_step else seconds

    def begin(self) -> None:
        """Take note that a step has just ended."""
        self._begin = self._last = self._clock()
        self._longest = 0.0

    def has_time(self) -> bool:
        """Return whether there is time for one part more, now that one is done."""
        now = self._clock()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        return now + self._longest - self._begin <= self.most

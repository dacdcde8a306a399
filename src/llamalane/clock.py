"""Time, passed in: production reads a monotonic clock, tests and simulations turn their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time in seconds from an arbitrary start; never goes back."""

    def now(self) -> float:
        """Return the current time in seconds."""


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return the current time in seconds."""
        return time.monotonic()


class VirtualClock:
    """A clock that stands still until it is turned."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the current time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass; they may not be negative."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now += seconds

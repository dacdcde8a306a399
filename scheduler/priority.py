"""Priorities: what they are called, and how waiting makes a request more urgent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llamalane.errors import InvalidPriorityError
from llamalane.ids import LEAST_URGENT, MOST_URGENT, Level

LEVELS = tuple(Level(level) for level in range(MOST_URGENT, LEAST_URGENT + 1))
_IN_DIGITS = {str(level): level for level in LEVELS}


@dataclass(frozen=True, slots=True)
class PriorityLevels:
    """The names of the levels, and the level of a request that names none."""

    names: Mapping[str, int]
    default: Level

    @property
    def most_urgent(self) -> Level:
        """Level 1."""
        return MOST_URGENT

    @property
    def least_urgent(self) -> Level:
        """Level 5."""
        return LEAST_URGENT

    def parse(self, value: int | str | None) -> Level:
        """Return the level that `value` means: a level, a level in digits, a name, or None for the default.

        Raises `InvalidPriorityError` for anything else.
        """
        if value is None:
            return self.default
        if isinstance(value, str):
            level = self.names.get(value, _IN_DIGITS.get(value))
            if level is not None:
                return Level(level)
        elif not isinstance(value, bool) and isinstance(value, int) and MOST_URGENT <= value <= LEAST_URGENT:
            return Level(value)
        raise InvalidPriorityError(value, self.names, MOST_URGENT, LEAST_URGENT)

    def name(self, level: Level) -> str:
        """Return the level's first name, or its number when it has none."""
        return next((name for name, number in self.names.items() if number == level), str(level))


@dataclass(frozen=True, slots=True)
class Aging:
    """How waiting makes a request more urgent: by one level for each `interval` seconds, up to level `ceiling`.

    Levels better than the ceiling are strict and do not age. Two requests below it grow more urgent at the same rate,
    so their order never changes and each key is computed once: `(min(p, c), arrival + max(p − c, 0) × interval)` for
    level p and ceiling c. Its second part is the moment at which the request reaches the ceiling.
    """

    ceiling: int
    interval: float

    def key(self, level: Level, arrival: float) -> tuple[int, float]:
        """Return the key of a request; the smallest key is the most urgent."""
        return min(level, self.ceiling), arrival + max(level - self.ceiling, 0) * self.interval

    def effective(self, level: Level, waited: float) -> float:
        """Return what waiting for so many seconds has made of a level, not beyond the ceiling."""
        return level if level <= self.ceiling else max(self.ceiling, level - waited / self.interval)

"""Who runs, by level and age, for whoever looks for one that could give way."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from llamalane.bench.simulator.row import Row
from llamalane.ids import Level
from llamalane.scheduler.priority import LEVELS

LOOK_AT = 64
"""So many rows of a level, the youngest, are looked at when one is to give way."""


class Runners:
    """The rows that hold a place, those of each level in order of their requests' arrival."""

    def __init__(self) -> None:
        self.count: dict[Level, int] = dict.fromkeys(LEVELS, 0)
        """How many rows there are of each level."""
        self._orders: dict[Level, list[int]] = {level: [] for level in LEVELS}
        self._rows: dict[int, Row] = {}

    def add(self, row: Row) -> None:
        """Take note of a row that got a place."""
        level = row.request.level
        self.count[level] += 1
        bisect.insort(self._orders[level], row.order)
        self._rows[row.order] = row

    def remove(self, row: Row) -> None:
        """Take note of a row that lost its place."""
        level = row.request.level
        self.count[level] -= 1
        orders = self._orders[level]
        del orders[bisect.bisect_left(orders, row.order)]
        del self._rows[row.order]

    def less_urgent(self, level: Level) -> Iterator[list[Row]]:
        """Return the youngest rows of each level less urgent than `level`, the least urgent level first."""
        for other in reversed(LEVELS):
            if other > level and self._orders[other]:
                yield [self._rows[order] for order in self._orders[other][-LOOK_AT:]]

"""Who had the places of one lane, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llamalane.bench.simulator.request import Picoseconds, seconds
from llamalane.bench.simulator.row import Row


@dataclass(frozen=True, slots=True)
class Stay:
    """A request on a place, in seconds; `first_token` is None when it had its first token before, or left without."""

    level: int
    begin: float
    first_token: float | None
    end: float


class Timeline:
    """Takes down who comes to one lane and who goes, for so many stays."""

    def __init__(self, lane: int = 0, most: int = 400) -> None:
        self.lane = lane
        self.stays: list[Stay] = []
        self._most = most
        self._begun: dict[Row, Picoseconds] = {}

    def note(self, rows: Sequence[Row], time: Picoseconds) -> None:
        """Take note that the lane has these rows from now on."""
        for row in [row for row in self._begun if row not in rows]:
            self.stays.append(_stay(row, self._begun.pop(row), time))
        for row in rows:
            if row not in self._begun and len(self.stays) + len(self._begun) < self._most:
                self._begun[row] = time


def _stay(row: Row, begin: Picoseconds, end: Picoseconds) -> Stay:
    first = row.request.first_token
    if first is not None and first <= begin:
        first = None
    return Stay(row.request.level, seconds(begin), None if first is None else seconds(first), seconds(end))

"""The requests that are to come, in order of their time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from llamalane.bench.simulator.request import Picoseconds, SimulatedRequest


class Arrivals:
    """Requests that come by themselves, in order of their time, and those that answer another's end."""

    def __init__(self, requests: Iterator[SimulatedRequest]) -> None:
        self._requests = requests
        self._next = next(requests, None)
        self._answers: list[tuple[Picoseconds, int, SimulatedRequest]] = []
        self._count = 0

    @property
    def time(self) -> Picoseconds | None:
        """When the next one arrives, None when no more will."""
        if self._answer_is_next():
            return self._answers[0][0]
        return None if self._next is None else self._next.arrival

    def push(self, request: SimulatedRequest, time: Picoseconds) -> None:
        """Let a request arrive at `time`."""
        request.arrival = time
        self._count += 1
        heapq.heappush(self._answers, (time, self._count, request))

    def pop(self) -> SimulatedRequest:
        """Take out the next one; there must be one."""
        if self._answer_is_next():
            return heapq.heappop(self._answers)[2]
        request = self._next
        assert request is not None
        self._next = next(self._requests, None)
        return request

    def _answer_is_next(self) -> bool:
        return bool(self._answers) and (self._next is None or self._answers[0][0] < self._next.arrival)

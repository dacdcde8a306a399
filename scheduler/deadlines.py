"""Which requests must have started or ended when."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from llamalane.scheduler.request import Request


class Deadlines:
    """For each request that is watched, the next moment to look at it; the earliest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._most = 16

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, request: Request, moment: float) -> None:
        """Have a request looked at when `moment` has come, or never if that is infinite.

        Requests that have ended are forgotten when they outnumber the others.
        """
        if moment == math.inf:
            return
        heapq.heappush(self._heap, (moment, request.order, request))
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if entry[2].delivery.outcome is None]
            heapq.heapify(self._heap)
            self._most = 2 * len(self._heap) + 16

    def passed(self, now: float) -> Iterator[Request]:
        """Take out and return the requests whose moment has come; some may have ended before."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]

    def seconds_left(self, now: float) -> float | None:
        """Return the time until the next moment, None when there is none."""
        return max(0.0, self._heap[0][0] - now) if self._heap else None

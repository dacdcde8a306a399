"""Which requests must end when."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from llamalane.scheduler.request import Request


class Deadlines:
    """The deadlines of requests, earliest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, request: Request, unfinished: int) -> None:
        """Keep an eye on a request that has a deadline.

        Requests that have ended are forgotten when they outnumber the `unfinished` ones.
        """
        if request.deadline is None:
            return
        heapq.heappush(self._heap, (request.deadline, request.order, request))
        if len(self._heap) > 2 * unfinished + 16:
            self._heap = [entry for entry in self._heap if entry[2].delivery.outcome is None]
            heapq.heapify(self._heap)

    def passed(self, now: float) -> Iterator[Request]:
        """Take out and return the requests whose deadline has passed; some may have ended before."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]

    def seconds_left(self, now: float) -> float | None:
        """Return the time until the next deadline, None when there is none."""
        return max(0.0, self._heap[0][0] - now) if self._heap else None

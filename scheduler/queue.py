"""The waiting queue: bounded, ordered by urgency, first come, first served among equals."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self

from llamalane.errors import QueueFullError
from llamalane.ids import Level, RequestId
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.request import Request


class LevelQueue:
    """The waiting requests of one level, oldest first.

    A heap rather than a deque: a request that comes back after a lane's failure takes its old place again. Removal
    marks an entry dead; the dead leave when they come to the top, or when they outnumber the living.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float], int, RequestId]] = []
        self._waiting: dict[RequestId, Request] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting.values())

    def __contains__(self, request: RequestId) -> bool:
        return request in self._waiting

    def push(self, request: Request) -> None:
        """Add a request; O(log n)."""
        self._waiting[request.id] = request
        heapq.heappush(self._heap, (request.key, request.order, request.id))

    def head(self) -> Request | None:
        """Return the request that has waited longest."""
        while self._heap:
            request = self._waiting.get(self._heap[0][2])
            if request is not None:
                return request
            heapq.heappop(self._heap)
        return None

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands; O(log n), amortized."""
        del self._waiting[request.id]
        if len(self._heap) > 2 * len(self._waiting) + 16:
            self._heap = [entry for entry in self._heap if entry[2] in self._waiting]
            heapq.heapify(self._heap)


class WaitingQueue:
    """The waiting requests of all levels, bounded in requests and in prompt tokens.

    Requests of one level age alike, so each level is first come, first served, and only the levels' heads are ever
    compared. `retry_after` estimates the seconds until a place in the queue comes free.
    """

    def __init__(self, max_requests: int, max_tokens: int, retry_after: Callable[[], float]) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.tokens = 0
        """Prompt tokens waiting."""
        self._retry_after = retry_after
        self._levels = {level: LevelQueue() for level in LEVELS}
        self._slots = 0

    def __len__(self) -> int:
        return sum(map(len, self._levels.values()))

    def __iter__(self) -> Iterator[Request]:
        for level in self._levels.values():
            yield from level

    def __contains__(self, request: RequestId) -> bool:
        return any(request in level for level in self._levels.values())

    @property
    def sizes(self) -> Mapping[Level, int]:
        """How many requests wait at each level."""
        return {level: len(queue) for level, queue in self._levels.items()}

    def reserve_nowait(self) -> Slot:
        """Reserve room for one request while it is being prepared; raises `QueueFullError` at once."""
        if len(self) + self._slots >= self.max_requests:
            raise QueueFullError(self._retry_after(), reason="requests", limit=self.max_requests)
        return Slot(self)

    def requeue(self, request: Request) -> None:
        """Put back a request that was admitted before; the bounds do not apply."""
        self.tokens += len(request.tokens)
        self._levels[request.level].push(request)

    def heads(self) -> Iterator[Request]:
        """Return the oldest request of each level that has one."""
        for queue in self._levels.values():
            head = queue.head()
            if head is not None:
                yield head

    def remove(self, request: Request) -> None:
        """Take a waiting request out."""
        self._levels[request.level].remove(request)
        self.tokens -= len(request.tokens)

    def _fill(self, request: Request) -> None:
        # A single prompt larger than the bound may still wait alone, else it could never be served.
        if self.tokens and self.tokens + len(request.tokens) > self.max_tokens:
            raise QueueFullError(self._retry_after(), reason="tokens", limit=self.max_tokens)
        self.requeue(request)


class Slot:
    """Room for one request in the queue; given back at the end of the `with` block unless it was filled."""

    def __init__(self, queue: WaitingQueue) -> None:
        self._queue = queue
        self._open = False

    def fill(self, request: Request) -> None:
        """Let the request wait in the slot; raises `QueueFullError` when too many tokens are waiting already."""
        self._queue._fill(request)
        self._close()

    def __enter__(self) -> Self:
        self._open = True
        self._queue._slots += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._queue._slots -= 1

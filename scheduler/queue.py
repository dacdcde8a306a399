"""The waiting queue: bounded, ordered by urgency, fair among tenants, first come, first served for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from types import TracebackType
from typing import Generic, Self

from llamalane.errors import QueueFullError
from llamalane.ids import Level, RequestId
from llamalane.scheduler.fairness import Fairness, Weights
from llamalane.scheduler.level_queue import Head, LevelQueue, W, age
from llamalane.scheduler.priority import LEVELS

MOST_KEPT = 0.5
"""So much of a queue is kept, at most, for those who were turned away and told to come back."""
NEARLY = 0.9
"""So full, of what is not kept, is a queue that may soon turn somebody away."""


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """How much may wait.

    Attributes:
        requests, tokens: the most requests, and prompt tokens of all of them together.
        reserve: for each level, how many of the requests can only be of that level or a better one.
        shed: whether a full queue turns out a less urgent request for a more urgent one.
    """

    requests: int
    tokens: int
    reserve: Mapping[Level, int] = field(default_factory=dict)
    shed: bool = False


class WaitingQueue(Generic[W]):
    """The waiting requests of all levels, bounded in requests and in prompt tokens.

    The key of a level's oldest request chooses the level, the smallest counter the tenant, and the age the request.
    Requests of one level age alike, so only the levels' heads are ever compared. `retry_after` is asked for each
    request that is turned away, by its level and the slots that it lacks (0: it is tokens that it lacks), and tells in
    how many seconds it should come back; `weights` says how
    much of the service each tenant should get; `may_shed` tells who can be turned
    out, and of those at a level the last who came is; `kept` is asked once for each request that comes, by its level,
    and tells how many slots are kept from it for those who were told to come back.
    """

    def __init__(
        self,
        bounds: QueueBounds,
        retry_after: Callable[[Level, int], float],
        weights: Weights | None = None,
        may_shed: Callable[[W], bool] = lambda _: True,
        kept: Callable[[Level], int] = lambda _: 0,
    ) -> None:
        self.bounds = bounds
        self.tokens = 0
        """Prompt tokens waiting."""
        self.fairness = Fairness(weights)
        """Whose turn it is; whoever admits and runs requests charges it."""
        self._retry_after = retry_after
        self._may_shed = may_shed
        self._kept = kept
        self._requests: dict[RequestId, W] = {}
        self._levels: dict[Level, LevelQueue[W]] = {level: LevelQueue(self.fairness.at(level)) for level in LEVELS}
        self._slots = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[W]:
        """Go through the waiting requests, in no order."""
        return iter(self._requests.values())

    def __contains__(self, request: RequestId) -> bool:
        return request in self._requests

    @property
    def sizes(self) -> Mapping[Level, int]:
        """How many requests wait at each level."""
        return {level: len(queue) for level, queue in self._levels.items()}

    def get(self, request: RequestId) -> W | None:
        """Return the waiting request of that id, None when it does not wait; O(1)."""
        return self._requests.get(request)

    @property
    def nearly_full(self) -> bool:
        """Whether somebody may be turned away soon."""
        requests = len(self) + self._slots + 1
        return requests >= NEARLY * (1 - MOST_KEPT) * self.bounds.requests or self.tokens >= NEARLY * self.bounds.tokens

    def reserve_nowait(self, level: Level, together: int = 1) -> Slot[W]:
        """Reserve room for one request of `level` while it is being prepared; raises `QueueFullError` at once.

        `together` is how many slots the client needs at once: whoever is turned away comes back for as many.
        """
        limit = self._open_to(level)
        kept = min(self._kept(level), int(MOST_KEPT * max(limit, 0)))
        if len(self) + self._slots >= limit + self._to_shed(level) - kept:
            raise QueueFullError(self._retry_after(level, together), reason="requests", limit=limit)
        return Slot(self)

    def requeue(self, request: W) -> None:
        """Put back a request that was admitted before, to its old place; the bounds do not apply."""
        self.tokens += request.prompt_tokens
        self._requests[request.id] = request
        self._levels[request.level].push(request)

    def heads(self) -> Iterator[Head[W]]:
        """Return the head of each level that has one."""
        for queue in self._levels.values():
            head = queue.head()
            if head is not None:
                yield head

    def remove(self, request: W) -> None:
        """Take a waiting request out; O(log n), amortized."""
        del self._requests[request.id]
        self._levels[request.level].remove(request)
        self.tokens -= request.prompt_tokens

    def in_order(self) -> list[W]:
        """Return all requests in the order in which they go if nothing changes from now on.

        It looks at urgency and at today's counters alone: not at the guaranteed share, at reserved places, or at
        what the counters grow by. O(n log n): for whoever asks why, not for scheduling.
        """
        levels = [queue.in_order() for queue in self._levels.values()]
        # A level's key is that of its oldest request, which may come after others of its level.
        oldest = [list(accumulate(map(age, reversed(level)), min))[::-1] for level in levels]
        places = [0] * len(levels)
        order = []
        while left := [number for number, level in enumerate(levels) if places[number] < len(level)]:
            first = min(left, key=lambda number: oldest[number][places[number]])
            order.append(levels[first][places[first]])
            places[first] += 1
        return order

    def _full(self, level: Level, *, lacks_slot: bool) -> QueueFullError:
        if lacks_slot:
            return QueueFullError(self._retry_after(level, 1), reason="requests", limit=self.bounds.requests)
        return QueueFullError(self._retry_after(level, 0), reason="tokens", limit=self.bounds.tokens)

    def _fill(self, request: W) -> list[W]:
        """Let a request wait, and return those that have to be turned out for it."""
        tokens, shed = self.tokens + request.prompt_tokens, list[W]()
        victims = self._victims(request.level)
        excess = len(self) + 1 - self._open_to(request.level)
        # A single prompt larger than the bound may still wait alone, else it could never be served.
        while excess > len(shed) or (tokens > self.bounds.tokens and tokens > request.prompt_tokens):
            victim = next(victims, None)
            if victim is None:
                raise self._full(request.level, lacks_slot=excess > len(shed))
            shed.append(victim)
            tokens -= victim.prompt_tokens
        self.requeue(request)
        return shed

    def _open_to(self, level: Level) -> int:
        """Return how many requests may wait, those kept for better levels left out."""
        kept = sum(
            max(0, count - len(self._levels[better])) for better, count in self.bounds.reserve.items() if better < level
        )
        return self.bounds.requests - kept

    def _to_shed(self, level: Level) -> int:
        """Return how many waiting requests might be turned out for one of `level`."""
        return sum(len(self._levels[worse]) for worse in LEVELS if worse > level) if self.bounds.shed else 0

    def _victims(self, level: Level) -> Iterator[W]:
        """Go through those who can be turned out for a request of `level`, in the order in which they are."""
        for worse in reversed(LEVELS):
            if worse > level and self.bounds.shed:
                # Those who came back stand last there, but did not come last.
                newest_first = sorted(self._levels[worse], key=age, reverse=True)
                yield from filter(self._may_shed, newest_first)


class Slot(Generic[W]):
    """Room for one request in the queue; given back at the end of the `with` block unless it was filled."""

    def __init__(self, queue: WaitingQueue[W]) -> None:
        self._queue = queue
        self._open = False

    def fill(self, request: W) -> list[W]:
        """Let the request wait in the slot, and return those that have to be turned out for it.

        Raises `QueueFullError` when too many tokens are waiting already.
        """
        shed = self._queue._fill(request)
        self._close()
        return shed

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

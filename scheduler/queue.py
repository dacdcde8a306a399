"""The waiting queue: bounded, ordered by urgency, fair among tenants, first come, first served for each of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from llamalane.errors import QueueFullError
from llamalane.ids import Level, RequestId
from llamalane.scheduler.fairness import Fairness, TenantCounters
from llamalane.scheduler.lazy_heap import LazyHeap
from llamalane.scheduler.priority import LEVELS

Age = tuple[tuple[int, float], int]
"""A request's key, then its order: the smaller, the older."""


class Waiting(Protocol):
    """What the queue has to know of a request. None of it changes, and two are equal only if they are the same."""

    def __hash__(self) -> int: ...

    @property
    def id(self) -> RequestId:
        """Its name; no two that wait have the same."""

    @property
    def key(self) -> tuple[int, float]:
        """Its place in the order of waiting, as `Aging.key` gives it."""

    @property
    def order(self) -> int:
        """Counts submissions, and so tells requests with equal keys apart."""

    @property
    def level(self) -> Level:
        """The level at which it was submitted."""

    @property
    def tenant(self) -> str:
        """Whose it is."""

    @property
    def prompt_tokens(self) -> int:
        """The length of its prompt in tokens."""


W = TypeVar("W", bound=Waiting)


@dataclass(frozen=True, slots=True)
class Head(Generic[W]):
    """The head of one level: its oldest request, which stands for the level, and the one whose turn it is.

    They differ when it is another tenant's turn.
    """

    oldest: W
    next: W


class TenantQueue(Generic[W]):
    """One tenant's requests at one level, oldest first.

    Arrivals come in order, so they stand in an ordered dict, which adds, finds and removes in O(1). Those that come
    back to a place before others have a heap of their own: they are few.
    """

    def __init__(self) -> None:
        self._arrived: OrderedDict[RequestId, W] = OrderedDict()
        self._returned: LazyHeap[W, Age] = LazyHeap()

    def __bool__(self) -> bool:
        return bool(self._arrived) or len(self._returned) > 0

    def push(self, request: W) -> None:
        """Add a request; O(1) for one younger than all, else O(log n)."""
        if not self._arrived or _age(self._arrived[next(reversed(self._arrived))]) < _age(request):
            self._arrived[request.id] = request
        else:
            self._returned.put(request, _age(request))

    def head(self) -> W:
        """Return the oldest request; there must be one."""
        returned = self._returned.first()
        if not self._arrived:
            assert returned is not None
            return returned
        arrived = self._arrived[next(iter(self._arrived))]
        return arrived if returned is None or _age(arrived) < _age(returned) else returned

    def remove(self, request: W) -> None:
        """Take a request out, wherever it stands."""
        if self._arrived.pop(request.id, None) is None:
            self._returned.discard(request)

    def in_order(self) -> list[W]:
        """Return all requests, oldest first; O(n log n)."""
        return sorted([*self._arrived.values(), *self._returned], key=_age)


class LevelQueue(Generic[W]):
    """The waiting requests of one level: a queue for each tenant, whose turn `counters` tell."""

    def __init__(self, counters: TenantCounters) -> None:
        self._counters = counters
        self._tenants: dict[str, TenantQueue[W]] = {}
        self._oldest: LazyHeap[str, Age] = LazyHeap()
        """The tenants by the age of their oldest requests."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, request: W) -> None:
        """Add a request; O(log n)."""
        tenant = request.tenant
        queue = self._tenants.get(tenant)
        if queue is None:
            queue = self._tenants[tenant] = TenantQueue()
            self._counters.join(tenant)
        queue.push(request)
        self._size += 1
        if queue.head() is request:
            self._oldest.put(tenant, _age(request))

    def head(self) -> Head[W] | None:
        """Return the oldest request and the one whose turn it is, None when nobody waits; O(log n), amortized."""
        first = self._oldest.first()
        if first is None:
            return None
        turn = self._counters.first()
        assert turn is not None
        oldest = self._tenants[first].head()
        return Head(oldest, oldest if turn == first else self._tenants[turn].head())

    def remove(self, request: W) -> None:
        """Take a request out, wherever it stands; O(log n), amortized."""
        tenant = request.tenant
        queue = self._tenants[tenant]
        was_head = queue.head() is request
        queue.remove(request)
        self._size -= 1
        if not queue:
            del self._tenants[tenant]
            self._counters.leave(tenant)
            self._oldest.discard(tenant)
        elif was_head:
            self._oldest.put(tenant, _age(queue.head()))

    def in_order(self) -> list[W]:
        """Return all requests in the order of their turns, should the counters stay as they are; O(n log n)."""
        return [request for tenant in self._counters.in_order() for request in self._tenants[tenant].in_order()]


class WaitingQueue(Generic[W]):
    """The waiting requests of all levels, bounded in requests and in prompt tokens.

    The key of a level's oldest request chooses the level, the smallest counter the tenant, and the age the request.
    Requests of one level age alike, so only the levels' heads are ever compared. `retry_after` estimates the seconds
    until a place in the queue comes free; `weights` says how much of the service each tenant should get, 1 for those
    that it does not name.
    """

    def __init__(
        self,
        max_requests: int,
        max_tokens: int,
        retry_after: Callable[[], float],
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.tokens = 0
        """Prompt tokens waiting."""
        self.fairness = Fairness(weights)
        """Whose turn it is; whoever admits and runs requests charges it."""
        self._retry_after = retry_after
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

    def reserve_nowait(self) -> Slot[W]:
        """Reserve room for one request while it is being prepared; raises `QueueFullError` at once."""
        if len(self) + self._slots >= self.max_requests:
            raise QueueFullError(self._retry_after(), reason="requests", limit=self.max_requests)
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

    def position(self, request: W) -> int:
        """Return how many requests go before a waiting one if nothing changes from now on.

        It looks at urgency and at today's counters alone: not at the guaranteed share, at reserved places, or at
        what the counters grow by. O(n log n): for whoever asks why, not for scheduling.
        """
        own = self._levels[request.level].in_order()
        before = own.index(request)
        # A level's key is that of its oldest request, which may come after others of its level. Whatever another
        # level has to get out before its key is behind this one's goes first.
        oldest = min(map(_age, own[before:]))
        for level, queue in self._levels.items():
            if level != request.level:
                older = [place for place, other in enumerate(queue.in_order(), 1) if _age(other) < oldest]
                before += older[-1] if older else 0
        return before

    def _fill(self, request: W) -> None:
        # A single prompt larger than the bound may still wait alone, else it could never be served.
        if self.tokens and self.tokens + request.prompt_tokens > self.max_tokens:
            raise QueueFullError(self._retry_after(), reason="tokens", limit=self.max_tokens)
        self.requeue(request)


class Slot(Generic[W]):
    """Room for one request in the queue; given back at the end of the `with` block unless it was filled."""

    def __init__(self, queue: WaitingQueue[W]) -> None:
        self._queue = queue
        self._open = False

    def fill(self, request: W) -> None:
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


def _age(request: Waiting) -> Age:
    return request.key, request.order

"""The waiting requests of one level: fair among tenants, first come, first served for each of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from llamalane.ids import Level, RequestId
from llamalane.scheduler.fairness import TenantCounters
from llamalane.scheduler.lazy_heap import LazyHeap

Age = tuple[tuple[int, float], int]
"""A request's key, then its order: the smaller, the older."""


class Waiting(Protocol):
    """What the queue has to know of a request. None of it changes while it waits; two are equal only if the same."""

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
        if not self._arrived or age(self._arrived[next(reversed(self._arrived))]) < age(request):
            self._arrived[request.id] = request
        else:
            self._returned.put(request, age(request))

    def head(self) -> W:
        """Return the oldest request; there must be one."""
        returned = self._returned.first()
        if not self._arrived:
            assert returned is not None
            return returned
        arrived = self._arrived[next(iter(self._arrived))]
        return arrived if returned is None or age(arrived) < age(returned) else returned

    def remove(self, request: W) -> None:
        """Take a request out, wherever it stands."""
        if self._arrived.pop(request.id, None) is None:
            self._returned.discard(request)

    def in_order(self) -> list[W]:
        """Return all requests, oldest first; O(n log n)."""
        return sorted([*self._arrived.values(), *self._returned], key=age)


class LevelQueue(Generic[W]):
    """The waiting requests of one level: a queue for each tenant, whose turn `counters` tell."""

    def __init__(self, counters: TenantCounters) -> None:
        self._counters = counters
        self._tenants: dict[str, TenantQueue[W]] = {}
        self._oldest: LazyHeap[str, Age] = LazyHeap()
        """The tenants by the age of their oldest requests."""
        self._requests: dict[RequestId, W] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[W]:
        """Go through the requests, in no order."""
        return iter(self._requests.values())

    def push(self, request: W) -> None:
        """Add a request; O(log n)."""
        tenant = request.tenant
        queue = self._tenants.get(tenant)
        if queue is None:
            queue = self._tenants[tenant] = TenantQueue()
            self._counters.join(tenant)
        queue.push(request)
        self._requests[request.id] = request
        if queue.head() is request:
            self._oldest.put(tenant, age(request))

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
        del self._requests[request.id]
        if not queue:
            del self._tenants[tenant]
            self._counters.leave(tenant)
            self._oldest.discard(tenant)
        elif was_head:
            self._oldest.put(tenant, age(queue.head()))

    def in_order(self) -> list[W]:
        """Return all requests in the order of their turns, should the counters stay as they are; O(n log n)."""
        return [request for tenant in self._counters.in_order() for request in self._tenants[tenant].in_order()]


def age(request: Waiting) -> Age:
    """Return what tells the older of two requests."""
    return request.key, request.order

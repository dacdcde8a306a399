"""Knows whose turn it is by working out everything anew whenever it is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from llamalane.ids import LEAST_URGENT, Level
from llamalane.scheduler.priority import LEVELS, Aging
from llamalane.scheduler.request import Request

INTERVAL = 32
"""Seconds for one level of aging: a power of two, so that the oracle's divisions are exact."""


class PlainCounters:
    """One level's virtual token counters, kept for ever and looked through from end to end."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.weights = weights or {}
        self.counters: defaultdict[str, float] = defaultdict(float)
        self.backlogged: list[str] = []
        self.last_to_leave: str | None = None

    def join(self, tenant: str) -> None:
        floor = 0.0
        if self.backlogged:
            floor = min(self.counters[other] for other in self.backlogged)
        elif self.last_to_leave is not None:
            floor = self.counters[self.last_to_leave]
        self.counters[tenant] = max(self.counters[tenant], floor)
        self.backlogged.append(tenant)

    def leave(self, tenant: str) -> None:
        self.backlogged.remove(tenant)
        self.last_to_leave = tenant

    def charge(self, tenant: str, service: float) -> None:
        self.counters[tenant] += service / self.weights.get(tenant, 1.0)

    def first(self) -> str:
        return min(self.backlogged, key=self.counters.__getitem__)


class Oracle:
    """The waiting requests, and who of them is next."""

    def __init__(self, aging: Aging, weights: Mapping[str, float] | None = None) -> None:
        self.aging = aging
        self.waiting: list[Request] = []
        self.counters = {level: PlainCounters(weights) for level in LEVELS}

    def arrive(self, request: Request) -> None:
        counters = self.counters[request.level]
        if request.tenant not in counters.backlogged:
            counters.join(request.tenant)
        self.waiting.append(request)

    def leave(self, request: Request) -> None:
        self.waiting.remove(request)
        if not any((other.level, other.tenant) == (request.level, request.tenant) for other in self.waiting):
            self.counters[request.level].leave(request.tenant)

    def priority(self, request: Request, now: float) -> float:
        """What its priority has become by waiting."""
        if request.level < self.aging.ceiling:
            return request.level
        return max(self.aging.ceiling, request.level - (now - request.arrival) / self.aging.interval)

    def urgency(self, request: Request, now: float) -> tuple[float, float, int]:
        priority = self.priority(request, now)
        since = 0.0
        if priority <= self.aging.ceiling:
            since = request.arrival + max(0, request.level - self.aging.ceiling) * self.aging.interval
        return priority, since, request.order

    def oldest(self, open_to: Level = LEAST_URGENT) -> Request:
        """Who has waited longest, of those that may take a place open to that level."""
        return min((one for one in self.waiting if one.level <= open_to), key=lambda one: one.order)

    def next(self, now: float, open_to: Level = LEAST_URGENT) -> Request:
        """Who is next when no share is due."""
        may = [one for one in self.waiting if one.level <= open_to]
        level = min(may, key=lambda one: self.urgency(one, now)).level
        tenant = self.counters[level].first()
        mine = [one for one in may if (one.level, one.tenant) == (level, tenant)]
        return min(mine, key=lambda one: (one.arrival, one.order))

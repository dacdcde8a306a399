"""Fairness among tenants: who has been served least, counted in tokens. Pure.

These are the Virtual Token Counters of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with
weights, one counter for each tenant and level.

A tenant's service is ``PROMPT_WEIGHT × prompt tokens + OUTPUT_WEIGHT × output tokens``; its counter grows by service
divided by the tenant's weight, and a free place goes to the tenant with the smallest counter among those that have
requests waiting (the backlogged ones). A tenant that becomes backlogged is lifted to the smallest counter of the
others, so that nobody saves up service by being idle.

Then the services of any two tenants that are backlogged throughout some time, each divided by the tenant's weight,
differ in that time by no more than ``2 × max(PROMPT_WEIGHT × L, OUTPUT_WEIGHT × M) / w``: L is the longest prompt in
tokens, M the most tokens, prompts included, that the requests running at one moment can come to have, w the smaller
weight. How this follows, and what an admission by the guaranteed share adds, is told in docs/scheduling.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from llamalane.ids import Level
from llamalane.scheduler.lazy_heap import LazyHeap
from llamalane.scheduler.priority import LEVELS

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
"""An output token counts twice, as in the paper: it needs a step, where a prompt's tokens share one."""

REMEMBERED = 10_000
"""How many idle tenants a level remembers."""


class Weights:
    """Each tenant's part of the service, in proportion to the others'; `default` for those not in `named`.

    Raises `ValueError` for a weight that is no number greater than 0.
    """

    def __init__(self, named: Mapping[str, float] | None = None, default: float = 1.0) -> None:
        self._named = dict(named or {})
        self._default = default
        whose = {f"tenant {tenant!r}": weight for tenant, weight in self._named.items()}
        for owner, weight in {**whose, "other tenants": default}.items():
            if not 0 < weight < math.inf:
                raise ValueError(f"the weight of {owner} must be a number greater than 0; got {weight!r}")

    def become(self, other: Weights) -> None:
        """Have the weights of another one from now on."""
        self._named, self._default = other._named, other._default

    def of(self, tenant: str) -> float:
        """Return a tenant's weight."""
        return self._named.get(tenant, self._default)


class TenantCounters:
    """The counters of one level's tenants; memory is bounded by its backlogged tenants and `remembered` idle ones.

    Beyond that the idle tenant with the smallest counter is forgotten. So that this gives it no credit, a tenant that
    is not known begins with the largest counter forgotten so far. Equal counters: who became backlogged first.
    """

    def __init__(self, weights: Weights, remembered: int = REMEMBERED) -> None:
        self._weights = weights
        self._remembered = remembered
        self._backlogged: LazyHeap[str, tuple[float, int]] = LazyHeap()
        self._idle: LazyHeap[str, tuple[float, int]] = LazyHeap()
        self._turns = itertools.count()
        self._forgotten = 0.0
        self._last_to_leave: str | None = None

    def __len__(self) -> int:
        """Return how many tenants are remembered."""
        return len(self._backlogged) + len(self._idle)

    def counter(self, tenant: str) -> float:
        """Return a tenant's counter: service divided by weight."""
        rank = self._backlogged.rank(tenant) or self._idle.rank(tenant)
        return self._forgotten if rank is None else rank[0]

    def first(self) -> str | None:
        """Return the backlogged tenant whose turn it is, None when there is none; O(log n), amortized."""
        return self._backlogged.first()

    def in_order(self) -> list[str]:
        """Return the backlogged tenants, the smallest counter first."""
        return self._backlogged.in_order()

    def join(self, tenant: str) -> None:
        """Take note that an idle tenant has become backlogged."""
        least = self._backlogged.first()
        if least is None:
            least = self._last_to_leave
        floor = 0.0 if least is None else self.counter(least)
        self._backlogged.put(tenant, (max(self.counter(tenant), floor), next(self._turns)))
        self._idle.discard(tenant)

    def leave(self, tenant: str) -> None:
        """Take note that a tenant has no request waiting any more."""
        rank = self._backlogged.rank(tenant)
        assert rank is not None
        self._backlogged.discard(tenant)
        self._last_to_leave = tenant
        self._remember(tenant, rank)

    def charge(self, tenant: str, service: float) -> None:
        """Add service, not yet divided by the tenant's weight, to its counter; the tenant may be idle by now."""
        service /= self._weights.of(tenant)
        rank = self._backlogged.rank(tenant)
        if rank is not None:
            self._backlogged.put(tenant, (rank[0] + service, rank[1]))
        else:
            counter, turn = self._idle.rank(tenant) or (self._forgotten, next(self._turns))
            self._remember(tenant, (counter + service, turn))

    def _remember(self, tenant: str, rank: tuple[float, int]) -> None:
        self._idle.put(tenant, rank)
        if len(self._idle) > self._remembered:
            least = self._idle.first()
            assert least is not None
            self._forgotten = max(self._forgotten, self.counter(least))
            self._idle.discard(least)


class Fairness:
    """The counters of all levels, with one set of weights.

    When `weights` are set to others, what was counted before stays as it was counted.
    """

    def __init__(self, weights: Weights | None = None) -> None:
        self.weights = weights or Weights()
        self._levels = {level: TenantCounters(self.weights) for level in LEVELS}

    def at(self, level: Level) -> TenantCounters:
        """Return the counters of one level."""
        return self._levels[level]

    def charge(self, level: Level, tenant: str, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Count what a tenant's request got: its prompt when it is admitted, its output with each step.

        A prompt counts whole, however much of it is cached, and once, however often the request is put back.
        """
        service = PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens
        self._levels[level].charge(tenant, service)

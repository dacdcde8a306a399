"""Where requests stand, cheaply enough to be told again and again while their clients wait."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from llamalane.ids import RequestId
from llamalane.scheduler.lifecycle import Lifecycle
from llamalane.scheduler.request import Request, RequestState

_FRESH = 0.5
"""For so many seconds, an order of turns is used again: working it out takes longer the more wait."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a request stands.

    Attributes:
        position: its place among the `waiting` requests for lanes of its model, 1 for the next; None when it does not
            wait. May be half a second old.
        computed: of the `tokens` that go before its next one, how many its lane has computed, or had before.
        computing: whether they are being computed.
        generated: how many tokens it has got.
    """

    state: RequestState
    position: int | None
    waiting: int
    computed: int
    tokens: int
    computing: bool
    generated: int


class Standings:
    """Tells where the requests of `life` stand."""

    def __init__(self, life: Lifecycle) -> None:
        self._life = life
        self._positions: dict[RequestId, int] = {}
        self._waiting: Counter[str] = Counter()
        self._since = -math.inf

    def find(self, request_id: RequestId, now: float) -> Standing:
        """Return where a request stands; raises `KeyError` for one that neither waits nor runs."""
        request = self._life.find(request_id)
        waits = request.state is RequestState.WAITING
        return Standing(
            state=request.state,
            position=self._position(request, now) if waits else None,
            waiting=self._waiting[request.model],
            computed=request.computed,
            tokens=request.length,
            computing=request.state is RequestState.RUNNING and request.since_join == 0,
            generated=len(request.generated),
        )

    def _position(self, request: Request, now: float) -> int:
        if now - self._since > _FRESH or request.id not in self._positions:
            self._refresh(now)
        return self._positions[request.id]

    def _refresh(self, now: float) -> None:
        self._since = now
        self._positions.clear()
        self._waiting.clear()
        for request in self._life.queue.in_order():
            self._waiting[request.model] += 1
            self._positions[request.id] = self._waiting[request.model]

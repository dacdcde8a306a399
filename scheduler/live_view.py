"""A running engine for whoever looks on: what there is of it now, and what happened of late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from llamalane.clock import Clock
from llamalane.ids import RequestId, SequenceId
from llamalane.kvcache import Holding
from llamalane.scheduler.lifecycle import Lifecycle
from llamalane.scheduler.recorder import FlightRecorder
from llamalane.scheduler.request import Request
from llamalane.scheduler.request_view import RequestView, view_of


@dataclass(frozen=True, slots=True)
class Occupant:
    """How far a request is that has a place, or cells of `lane`; `first_token` is when it got its first one."""

    request: RequestId
    tenant: str
    lane: str
    sequence: SequenceId | None
    generated_tokens: int
    first_token: float | None


class LiveView:
    """Shows what `life` holds. Reading changes nothing, and is for the thread of the event loop only."""

    def __init__(self, life: Lifecycle, clock: Clock) -> None:
        self._life = life
        self._clock = clock

    @property
    def now(self) -> float:
        """The time in seconds, as the engine's clock counts."""
        return self._clock.now()

    @property
    def recorder(self) -> FlightRecorder:
        """What happened of late."""
        return self._life.recorder

    @property
    def idle(self) -> bool:
        """Whether no request waits or holds anything."""
        return self._life.idle

    def requests(self, most: int) -> list[RequestView]:
        """Return the requests that have not ended, `most` at most: those that have a place before those that wait."""
        unfinished = (one for one in (*self._life.roster, *self._life.queue) if one.delivery.outcome is None)
        return [view_of(request) for request in islice(unfinished, most)]

    def occupants(self) -> list[Occupant]:
        """Return how far the requests are that have a place, or whose cells are on a lane while they wait."""
        roster = self._life.roster
        return [
            _occupant(request)
            for ledger in roster.ledgers.values()
            for request in (*ledger, *roster.paused_on(ledger))
            if request.delivery.outcome is None
        ]

    def find(self, request_id: RequestId) -> RequestView | None:
        """Return a request that has not ended, or not long ago; None when there is none."""
        request = self._life.queue.get(request_id) or self._life.roster.get(request_id)
        if request is not None and request.delivery.outcome is None:
            return view_of(request)
        return self.recorder.ended.get(request_id)

    def holdings(self) -> Mapping[str, tuple[Holding, ...]]:
        """Tell of each lane whose its KV cells are."""
        return {name: ledger.lane.region.holdings() for name, ledger in self._life.roster.ledgers.items()}


def _occupant(request: Request) -> Occupant:
    sequence = None if request.lease is None else request.lease.sequence
    generated = len(request.generated)
    return Occupant(request.id, request.tenant, request.lane, sequence, generated, request.first_token_at)

"""A request as others may see it: where it is and what has happened to it, and nothing of what it says."""

from __future__ import annotations

from dataclasses import dataclass

from llamalane.errors import LlamalaneError
from llamalane.ids import Level, RequestId, SequenceId
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.result import Result
from llamalane.streams import FinishReason

Outcome = FinishReason | type[LlamalaneError]
"""Why a request ended: for what reason its output did, or with which error."""

FIRST_EVENTS = 8
LAST_EVENTS = 56
"""So many of a request's events are seen, from its beginning and of late: one that is parked often has many."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request at one moment; times are in seconds, as the engine's clock counts.

    Attributes:
        lane: where it runs, or ran last; empty before that.
        sequence: whose cells there are its own, None while it has none.
        cached_tokens: how many of its prompt's tokens were in the KV cache when it got its first place.
        max_tokens: the most tokens that it can get.
        first_token: when it got its first one.
        events: what has happened to it, and when.
        outcome: why it ended, None while it has not.
    """

    id: RequestId
    tenant: str
    state: RequestState
    level: Level
    arrival: float
    lane: str
    sequence: SequenceId | None
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    max_tokens: int
    first_token: float | None
    events: tuple[tuple[EventKind, float], ...]
    outcome: Outcome | None


def view_of(request: Request) -> RequestView:
    """Return a request as it is now."""
    return RequestView(
        id=request.id,
        tenant=request.tenant,
        state=request.state,
        level=request.level,
        arrival=request.arrival,
        lane=request.lane,
        sequence=None if request.lease is None else request.lease.sequence,
        prompt_tokens=len(request.tokens),
        cached_tokens=request.cached,
        generated_tokens=len(request.generated),
        max_tokens=request.max_tokens,
        first_token=request.first_token_at,
        events=_shortened(request.events),
        outcome=_outcome(request),
    )


def _shortened(events: list[tuple[EventKind, float]]) -> tuple[tuple[EventKind, float], ...]:
    if len(events) <= FIRST_EVENTS + LAST_EVENTS:
        return tuple(events)
    return (*events[:FIRST_EVENTS], *events[-LAST_EVENTS:])


def _outcome(request: Request) -> Outcome | None:
    outcome = request.delivery.outcome
    if outcome is None:
        return None
    return outcome.finish_reason if isinstance(outcome, Result) else type(outcome)

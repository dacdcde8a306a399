"""Why a request is where it is."""

from __future__ import annotations

from dataclasses import dataclass

from llamalane.ids import Level, RequestId
from llamalane.scheduler.lifecycle import Lifecycle
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.rules import Rules

_ON_A_LANE = {
    RequestState.RUNNING: "it is running",
    RequestState.PARKING: "it is giving way, and will wait again",
    RequestState.LEAVING: "it has ended, and its lane has yet to drop it",
}
_HANDED_OVER = "its prompt is computed, and its cells are being saved for another lane"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a request is, and why it is not further.

    Attributes:
        position: how many requests go before it, None when it does not wait.
        effective_priority: its level, less what waiting has lifted it by.
        estimated_start: in how many seconds it is likely to get a place, None when it does not wait, or no lane takes
            requests.
        events: what has happened to it, each with its time in seconds, as the engine's clock counts.
        lane: where it runs, or ran last.
    """

    request: RequestId
    state: RequestState
    level: Level
    position: int | None
    effective_priority: float
    reason: str
    estimated_start: float | None
    events: tuple[tuple[str, float], ...]
    lane: str | None
    prompt_tokens: int
    generated_tokens: int
    tenant: str = ""


def explain_all(life: Lifecycle, rules: Rules, now: float) -> list[Explanation]:
    """Tell of all requests where they are and why: those that wait, in the order of their turns, then the others."""
    waiting = [_explain(life, rules, request, now, position) for position, request in enumerate(life.queue.in_order())]
    return [*waiting, *(_explain(life, rules, request, now, None) for request in life.roster)]


def explain(life: Lifecycle, rules: Rules, request_id: RequestId, now: float) -> Explanation:
    """Tell where a request is and why; raises `KeyError` for one that neither waits nor runs."""
    request = life.queue.get(request_id)
    if request is not None:
        return _explain(life, rules, request, now, life.queue.in_order().index(request))
    for request in life.roster:
        if request.id == request_id:
            return _explain(life, rules, request, now, None)
    raise KeyError(request_id)


def _explain(life: Lifecycle, rules: Rules, request: Request, now: float, position: int | None) -> Explanation:
    return Explanation(
        request=request.id,
        state=request.state,
        level=request.level,
        position=position,
        effective_priority=rules.aging.effective(request.level, now - request.arrival),
        reason=_on_a_lane(request) or _why_it_waits(life, rules, request, position or 0),
        estimated_start=None if position is None else _estimated_start(life, request, position, now),
        events=tuple((kind.value, time) for kind, time in request.events),
        lane=request.lane or None,
        prompt_tokens=len(request.tokens),
        generated_tokens=len(request.generated),
        tenant=request.tenant,
    )


def _estimated_start(life: Lifecycle, request: Request, position: int, now: float) -> float | None:
    if not any(lane.open for lane in life.roster.pool.lanes):
        return None  # until somebody resumes one
    return life.waits.estimated_wait(position, request.level, now)


def _on_a_lane(request: Request) -> str | None:
    if request.state is RequestState.PARKING and request.handed_over:
        return _HANDED_OVER
    return _ON_A_LANE.get(request.state)


def _why_it_waits(life: Lifecycle, rules: Rules, request: Request, position: int) -> str:
    pool = life.roster.pool
    if not any(lane.serving for lane in pool.lanes):
        return "no lane has a context just now"
    if not any(lane.open for lane in pool.lanes):
        return "every lane that has a context is paused"
    if position:
        return f"{position} more urgent or older requests, or other tenants' whose turn it is, go first"
    if not pool.free:
        return "all places are taken by requests as urgent, or that may not be displaced"
    choice = rules.admission.choose(life.queue, pool.free, life.roster.running)
    if choice is None or choice.open_to < request.level:
        return "the free places are reserved for more urgent requests"
    if choice.request is not request:
        return "the guaranteed share lets one go first that has waited longer"
    together = len(request.company)
    open_to = rules.admission.open_to(pool.free - together + 1, life.roster.running)
    if open_to is None or open_to < request.level:
        return "it starts together with the other choices of its prompt, and there are too few places for all"
    if life.roster.lane_for(request, by_share=choice.by_share) is not None:
        return "it starts with the next step"
    if not any(lane.free for lane in life.roster.roles.lanes_for(request)):
        return "the lanes on which it could start have no free place"
    return "the lanes' KV cells, or the targets of more urgent requests, do not allow one more"

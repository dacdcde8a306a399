"""`/v1/queue`: who waits, who runs, and why."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from llamalane.api.answer_schemas import QueueEntry, QueueList
from llamalane.api.authentication import caller_of
from llamalane.api.errors import request_not_found
from llamalane.api.keys import Caller
from llamalane.api.openapi import answer, errors
from llamalane.api.service import Service
from llamalane.ids import RequestId
from llamalane.scheduler.explain import Explanation


def add_queue_routes(router: APIRouter, service: Service) -> None:
    """Add the routes to `router`."""

    @router.get("/v1/queue", responses=answer(QueueList, "The requests.") | errors(503))
    async def list_queue(request: Request) -> JSONResponse:
        """List the requests that wait, in the order of their turns, and those that run.

        Where clients have keys of their own, only those of the key's tenant, unless it may administer.
        """
        caller = caller_of(request.scope)
        explanations = service.any_engine().queue()
        entries = [_entry(one) for one in explanations if service.shows(one.tenant, caller)]
        return JSONResponse({"object": "list", "data": entries})

    @router.get("/v1/queue/{request_id:path}", responses=answer(QueueEntry, "The request.") | errors(404, 503))
    async def show_request(request: Request, request_id: str) -> JSONResponse:
        """Tell where a request is; the id of an answer stands for its first choice."""
        entry = find_entry(service, caller_of(request.scope), request_id)
        return request_not_found(request_id).response() if entry is None else JSONResponse(entry)


def find_entry(service: Service, caller: Caller, request_id: str) -> dict[str, Any] | None:
    """Return what is told of a request, or of the first choice of an answer; None where the caller may see none."""
    engine = service.any_engine()
    for name in (request_id, f"{request_id}/0"):
        try:
            explanation = engine.explain(RequestId(name))
        except KeyError:
            continue
        if service.shows(explanation.tenant, caller):
            return _entry(explanation)
    return None


def _entry(explanation: Explanation) -> dict[str, Any]:
    events = explanation.events
    begin = events[0][1] if events else 0.0
    return {
        "id": explanation.request,
        "object": "queue.entry",
        "state": explanation.state.value,
        "priority": explanation.level,
        "effective_priority": explanation.effective_priority,
        "position": explanation.position,
        "reason": explanation.reason,
        "estimated_start": explanation.estimated_start,
        "lane": explanation.lane,
        "prompt_tokens": explanation.prompt_tokens,
        "generated_tokens": explanation.generated_tokens,
        "events": [{"name": name, "after": round(time - begin, 6)} for name, time in events],
    }

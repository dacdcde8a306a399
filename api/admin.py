"""`/admin`: drains the server, pauses lanes, cancels requests and changes their priority. For keys that may."""

from __future__ import annotations

import logging
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse

from llamalane.api.answer_schemas import Drained, LaneSwitched, RequestsCancelled, RequestsChanged
from llamalane.api.authentication import caller_of
from llamalane.api.bodies import explain
from llamalane.api.errors import lane_not_found, request_not_found
from llamalane.api.field_schemas import level_or_name
from llamalane.api.openapi import answer, errors, request_body
from llamalane.api.priority import choose_level
from llamalane.api.service import Service
from llamalane.errors import InvalidRequestError, PermissionDeniedError
from llamalane.ids import RequestId
from llamalane.scheduler import Engine, EngineState, LaneStatistics, RequestState

logger = logging.getLogger("llamalane.api")

AdminBodyT = TypeVar("AdminBodyT", bound=BaseModel)


class DrainBody(BaseModel):
    """How long running requests have for finishing, in seconds; null for `scheduler.drain_timeout`."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    patience: Annotated[float, Field(ge=0)] | None = None


class PriorityBody(BaseModel):
    """The priority that a request shall have: a level, or its name."""

    model_config = ConfigDict(strict=True, extra="forbid")

    priority: Annotated[Any, level_or_name(optional=False)]


def admin_router(service: Service) -> APIRouter:
    """Return the routes, which ask for a key that may administer."""

    def require_admin(request: Request) -> None:
        if not caller_of(request.scope).admin:
            what = "this API key may not administer" if service.keys.has_admin else "no API key may administer"
            raise PermissionDeniedError(f"{what}: use one that has `admin: true` in the server's configuration")

    router = APIRouter(prefix="/admin", dependencies=[Depends(require_admin)], responses=errors(403, 503))
    _add_drain_route(router, service)
    _add_lane_routes(router, service)
    _add_request_routes(router, service)
    return router


def _add_drain_route(router: APIRouter, service: Service) -> None:
    @router.post(
        "/drain",
        responses=answer(Drained, "It has drained.") | errors(400),
        openapi_extra=request_body(DrainBody, required=False),
    )
    async def drain(request: Request) -> JSONResponse:
        """Take no new requests from now on, and answer when those under way have ended."""
        body = _parse(DrainBody, await request.body() or b"{}")
        engine = service.any_engine()
        if engine.state is not EngineState.DRAINING:
            engine = service.ready_engine()
        _log(request, "drains the server")
        await engine.drain(body.patience)
        return JSONResponse({"object": "drain", "state": engine.state.value})


def _add_lane_routes(router: APIRouter, service: Service) -> None:
    switched = answer(LaneSwitched, "The lane.") | errors(404)

    @router.post("/lanes/{name:path}/pause", responses=switched)
    async def pause_lane(request: Request, name: str) -> JSONResponse:
        """Let a lane finish what runs on it and take nothing new."""
        return _switch(request, service.any_engine(), name, paused=True)

    @router.post("/lanes/{name:path}/resume", responses=switched)
    async def resume_lane(request: Request, name: str) -> JSONResponse:
        """Let a paused lane take requests again."""
        return _switch(request, service.any_engine(), name, paused=False)


def _switch(request: Request, engine: Engine, name: str, *, paused: bool) -> JSONResponse:
    lanes = _lanes(engine)
    if name not in lanes:
        return lane_not_found(name, lanes).response()
    _log(request, f"{'pauses' if paused else 'resumes'} lane {name}")
    if paused:
        engine.pause_lane(name)
    else:
        engine.resume_lane(name)
    lane = _lanes(engine)[name]
    return JSONResponse({"object": "lane", "name": name, "paused": lane.paused, "running": lane.running})


def _lanes(engine: Engine) -> dict[str, LaneStatistics]:
    return {lane.name: lane for lane in engine.stats().lanes}


def _add_request_routes(router: APIRouter, service: Service) -> None:
    @router.post(
        "/requests/{request_id:path}/cancel", responses=answer(RequestsCancelled, "They have ended.") | errors(404)
    )
    async def cancel(request: Request, request_id: str) -> JSONResponse:
        """End a request, or all choices of an answer; its client gets an error."""
        engine = service.any_engine()
        names = _unfinished(engine, request_id)
        if not names:
            return request_not_found(request_id).response()
        _log(request, f"cancels {', '.join(names)}")
        for name in names:
            engine.cancel(name)
        return JSONResponse({"object": "requests", "cancelled": names})

    @router.post(
        "/requests/{request_id:path}/priority",
        responses=answer(RequestsChanged, "They have the priority.") | errors(400, 404),
        openapi_extra=request_body(PriorityBody),
    )
    async def set_priority(request: Request, request_id: str) -> JSONResponse:
        """Give a request, or all choices of an answer, another priority, whether it waits or runs."""
        body = _parse(PriorityBody, await request.body())
        engine = service.any_engine()
        if body.priority is None:
            raise InvalidRequestError("priority must be a level or its name; got null", param="priority")
        level = choose_level(engine.levels, body.priority, None, None)
        names = _unfinished(engine, request_id)
        if not names:
            return request_not_found(request_id).response()
        _log(request, f"gives priority {level} to {', '.join(names)}")
        for name in names:
            engine.set_priority(name, level)
        return JSONResponse({"object": "requests", "priority": level, "changed": names})


def _unfinished(engine: Engine, request_id: str) -> list[RequestId]:
    """Return the requests of that id: one, or the choices of an answer."""
    return [
        one.request
        for one in engine.queue()
        if one.state is not RequestState.LEAVING
        and (one.request == request_id or one.request.startswith(f"{request_id}/"))
    ]


def _parse(kind: type[AdminBodyT], data: bytes) -> AdminBodyT:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise explain(error) from None


def _log(request: Request, what: str) -> None:
    logger.info("key %s %s", caller_of(request.scope).name, quote(what, safe=" ,/-"))

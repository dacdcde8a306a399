"""The endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from llamalane.api.admin import admin_router
from llamalane.api.answer_schemas import Health, Model, ModelList
from llamalane.api.answers import GenerationAnswer
from llamalane.api.anthropic.answer_schemas import MessageErrorAnswer
from llamalane.api.anthropic.count_tokens import add_counting_route
from llamalane.api.anthropic.messages import Messages
from llamalane.api.authentication import caller_of
from llamalane.api.batch import ENDPOINTS, POOLED
from llamalane.api.batches.batch_routes import add_batch_routes
from llamalane.api.batches.file_routes import add_file_routes
from llamalane.api.bodies import read_body
from llamalane.api.dashboard.routes import dashboard_router
from llamalane.api.explain import add_queue_routes
from llamalane.api.middleware import METRICS_PATH
from llamalane.api.openapi import (
    ANY_ROUTE,
    GENERATION,
    Responses,
    all_errors,
    answer,
    content,
    errors,
    prioritized_request,
)
from llamalane.api.orders import Endpoint
from llamalane.api.pooled import PooledEndpoint, PooledResponse
from llamalane.api.priority import PRIORITY_HEADER
from llamalane.api.responses.routes import add_response_routes
from llamalane.api.service import Service
from llamalane.api.tokenization import add_tokenization_routes
from llamalane.errors import LaneDownError
from llamalane.scheduler import ServedModel


def make_router(service: Service) -> APIRouter:
    """Return the routes of an app that serves `service`."""
    router = APIRouter(responses=ANY_ROUTE)
    for endpoint in ENDPOINTS.values():
        _add_generation(router, service, endpoint, GENERATION)
    _add_generation(router, service, Messages(), all_errors(MessageErrorAnswer))
    add_counting_route(router, service)
    for path, pooled in POOLED.items():
        router.add_api_route(
            path,
            _answering(service, pooled, PooledResponse),
            methods=["POST"],
            name=type(pooled).__name__,
            description=pooled.__doc__,
            response_class=JSONResponse,
            responses=answer(pooled.answer_type, "The answer.") | GENERATION,
            openapi_extra=prioritized_request(pooled.body_type),
        )
    add_response_routes(router, service)
    add_tokenization_routes(router, service)
    _add_model_routes(router, service)
    add_queue_routes(router, service)
    add_file_routes(router, service)
    add_batch_routes(router, service)
    _add_health_routes(router, service)
    router.include_router(admin_router(service))
    if service.api.dashboard:
        router.include_router(dashboard_router(service))
    return router


def _add_generation(router: APIRouter, service: Service, endpoint: Endpoint[Any], failures: Responses) -> None:
    router.add_api_route(
        endpoint.path,
        _answering(service, endpoint, partial(GenerationAnswer, tracing=service.tracing)),
        methods=["POST"],
        name=type(endpoint).__name__,
        description=endpoint.__doc__,
        response_class=JSONResponse,
        responses=answer(endpoint.answer, "The answer.", stream=endpoint.chunk) | failures,
        openapi_extra=prioritized_request(endpoint.body_type),
    )


def _answering(
    service: Service, endpoint: Endpoint[Any] | PooledEndpoint[Any], respond: Callable[..., Response]
) -> Callable[[Request], Awaitable[Response]]:
    """Return what reads a body for `endpoint` and lets `respond` answer it."""

    async def handle(request: Request) -> Response:
        engine = service.ready_engine()
        body = await read_body(engine, endpoint.body_type, await request.body())
        return respond(
            engine,
            endpoint,
            body,
            caller=caller_of(request.scope),
            api=service.api,
            priority_header=request.headers.get(PRIORITY_HEADER),
        )

    return handle


def _add_model_routes(router: APIRouter, service: Service) -> None:
    @router.get("/v1/models", responses=answer(ModelList, "The models.") | errors(503))
    async def list_models() -> JSONResponse:
        """List the models that are served."""
        engine = service.ready_engine()
        data = [_describe(model, service.created) for model in engine.served_models]
        return JSONResponse({"object": "list", "data": data})

    @router.get("/v1/models/{model:path}", responses=answer(Model, "The model.") | errors(404, 503))
    async def show_model(model: str) -> JSONResponse:
        """Describe a model, under its name or an alias."""
        engine = service.ready_engine()
        return JSONResponse(_describe(engine.find_model(model), service.created))


def _describe(model: ServedModel, created: int) -> dict[str, Any]:
    info = model.info
    vectors = {} if model.dimensions is None else {"dimensions": model.dimensions}
    return {
        "id": model.names[0],
        "object": "model",
        "created": created,
        "owned_by": "llamalane",
        "aliases": list(model.names[1:]),
        "task": model.task,
        "max_model_len": info.limit,
        **vectors,
        "meta": {
            "n_vocab": info.vocabulary_size,
            "n_ctx_train": info.train_context,
            "n_params": info.parameters,
            "size": info.bytes,
        },
    }


def _add_health_routes(router: APIRouter, service: Service) -> None:
    healthy = answer(Health, "Requests can be served.") | errors(503)

    @router.get("/health", responses=healthy)
    @router.get("/v1/health", responses=healthy)
    @router.head("/health", include_in_schema=False)
    @router.head("/v1/health", include_in_schema=False)
    async def health() -> JSONResponse:
        """Tell whether requests can be served, and which lanes are out, paused or stalled."""
        lanes = service.ready_engine().stats().lanes
        down = [lane.name for lane in lanes if lane.down]
        if len(down) == len(lanes):
            raise LaneDownError("every lane has failed too often in a row; restart the server")
        stalled = [lane.name for lane in lanes if lane.step_age > service.api.stalled_after]
        if len(down) + len(stalled) == len(lanes):
            raise LaneDownError(
                f"no lane has finished its step within {service.api.stalled_after:g} s; is a device stuck? "
                "Restart the server if it does not go on"
            )
        paused = [lane.name for lane in lanes if lane.paused]
        told = {"lanes_down": down, "lanes_paused": paused, "lanes_stalled": stalled}
        notes = {name: names for name, names in told.items() if names}
        return JSONResponse({"status": "ok", **notes})

    @router.get(
        METRICS_PATH,
        response_class=Response,
        responses=content("The metrics.", {"type": "string"}, "text/plain") | errors(503),
    )
    async def metrics(request: Request) -> Response:
        """Return metrics for Prometheus."""
        service.any_engine()
        return service.metrics.response(request.headers.get("accept", ""))

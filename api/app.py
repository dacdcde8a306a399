"""The ASGI app."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from opentelemetry.trace import TracerProvider
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from llamalane import __version__
from llamalane.api.authentication import Authenticate
from llamalane.api.batches.file_routes import FILES_PATH, largest_form
from llamalane.api.config import ApiConfig, ServerConfig
from llamalane.api.dashboard.page import PAGE_PATHS
from llamalane.api.error_responses import handle_error
from llamalane.api.limits import LimitBody, LimitHead
from llamalane.api.middleware import OPEN_PATHS, RequestLog
from llamalane.api.openapi import DESCRIPTION, DESCRIPTION_PATHS, OPENAPI_PATH, describe, docs_router
from llamalane.api.priority import PRIORITY_HEADER
from llamalane.api.routes import make_router
from llamalane.api.service import OnFailure, Service
from llamalane.errors import LlamalaneError
from llamalane.scheduler import Changes, Engine, EngineConfig


def create_app(
    engine_or_config: Engine | EngineConfig,
    *,
    api: ApiConfig | None = None,
    on_failure: OnFailure | None = None,
    tracer_provider: TracerProvider | None = None,
) -> FastAPI:
    """Return an app that serves a model with OpenAI's endpoints, and Anthropic's for messages.

    Given a configuration, the app's lifespan starts an engine and closes it; while the model loads, every endpoint
    answers 503. Given an engine, that one is used: start it before serving. `api` stands for the `api` part of a
    `ServerConfig`; raises `ConfigError` when its keys cannot be used, or when `api.traces` needs what is not installed.

    When the engine cannot be started, or fails, `on_failure` is called with the error, on the event loop; whoever runs
    the server should end it then. Without `on_failure` the lifespan raises the error: Hypercorn ends, Uvicorn logs it
    and goes on, and every endpoint answers 503 with the error.

    Requests are traced by `tracer_provider`; without one, as `api.traces` says, or else by the tracer provider that
    the process has set, if it has.

    To mount the app in another one, give its lifespan to that one, whose server knows no other::

        llm = create_app(config)
        app = FastAPI(lifespan=lifespan_of(llm))
        app.mount("/llm", llm)
    """
    service = Service(engine_or_config, api, on_failure, tracer_provider)
    app = FastAPI(
        title="llamalane",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=OPENAPI_PATH if service.api.docs else None,
        docs_url=None,
        redoc_url=None,
        lifespan=service.lifespan,
        telemetry=service.tracing.for_fastapi,
    )
    app.state.llamalane = service
    for kind in (LlamalaneError, HTTPException):
        app.add_exception_handler(kind, handle_error)
    app.include_router(make_router(service))
    describe(app)
    if service.api.docs:
        app.include_router(docs_router())
    # The last one added is the first to see a request.
    app.add_middleware(
        LimitBody,
        limit=service.api.max_body_bytes,
        seconds=service.api.body_timeout,
        larger={FILES_PATH: largest_form(service.api)},
    )
    open_paths = OPEN_PATHS
    open_paths |= DESCRIPTION_PATHS if service.api.docs else frozenset()
    open_paths |= PAGE_PATHS if service.api.dashboard else frozenset()
    app.add_middleware(Authenticate, admit=service.admit, open_paths=open_paths)
    app.add_middleware(LimitHead)
    app.add_middleware(RequestLog, count=service.metrics.count_response)
    if service.api.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.api.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Request-Id", "Request-Id", PRIORITY_HEADER],
        )
    return app


def lifespan_of(app: FastAPI) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return the lifespan of an app made by `create_app`, for the app in which it is mounted.

    An app that has a lifespan of its own enters it there: `async with lifespan_of(llm)(app): ...`.
    """
    return _service(app).lifespan


async def drain(app: FastAPI) -> None:
    """Let an app made by `create_app` take no new requests, and wait until those under way have ended.

    What has not ended after `scheduler.drain_timeout` ends with an error. For a server that waits for its
    connections before it ends the lifespan.
    """
    await _service(app).drain()


def reload_config(app: FastAPI, config: ServerConfig) -> Changes:
    """Let an app made by `create_app`, and its engine, take over what of `config` can change while they run.

    Under `api` that is: `api_key`, `keys` and `keys_file` (which is read again), `above_level`, `metrics_key` and
    `tenant_from_user`; under `scheduler`: what `Engine.reload` tells. Returns what holds now, and what would need a
    restart. Raises `ConfigError`, and keeps all as it was, when something cannot be used. To be called on the event
    loop of the engine.
    """
    return _service(app).reload(config)


def _service(app: FastAPI) -> Service:
    service = getattr(app.state, "llamalane", None)
    if not isinstance(service, Service):
        raise TypeError("this app was not made by llamalane.api.create_app")
    return service

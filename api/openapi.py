"""The API's description: `/openapi.json`, and `/docs`, a page that shows it and needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from llamalane.api.answer_schemas import ErrorAnswer
from llamalane.api.late_schemas import SchemaWriter, answer_schema, body_schema
from llamalane.api.middleware import OPEN_PATHS
from llamalane.api.priority import PRIORITY_HEADER

OPENAPI_PATH = "/openapi.json"
DOCS_PATH = "/docs"
_ASSETS: Mapping[str, str] = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
DESCRIPTION_PATHS = frozenset({OPENAPI_PATH, DOCS_PATH, *(f"{DOCS_PATH}/{name}" for name in _ASSETS)})
"""Where the description is. It tells nothing of models or clients."""

DESCRIPTION = """\
OpenAI's API on llama.cpp, and Anthropic's messages, with a priority for each request: from 1 (the most urgent) to 5, or
its name. It comes from `priority` in the body, else from the header `X-Priority`, else from `service_tier`.

Every answer has the header `X-Request-Id`, which the request may bring; every error has the form of `ErrorAnswer`, and
below `/v1/messages` that of `MessageErrorAnswer`.
"""

_MEANINGS: Mapping[int, str] = {
    400: "The request is wrong; `param` names the field.",
    401: "The API key is missing or wrong.",
    403: "The API key does not allow this.",
    404: "There is no such model, request, lane, file, batch or path.",
    408: "The body came too slowly.",
    409: "The request was superseded by a newer one, or cancelled; or the state of the file or batch forbids this.",
    413: "The body is too large, or the file in it.",
    429: "The queue is full, the tenant is at its limit, or a more urgent request took the slot; see `Retry-After`.",
    431: "The headers are too many or too large.",
    500: "The server failed.",
    503: "The model is being loaded, the server is shutting down, or every lane has failed.",
    504: "The deadline passed, or could not be met.",
}
Responses = dict[int | str, dict[str, Any]]


def errors(*statuses: int, form: type[BaseModel] = ErrorAnswer) -> Responses:
    """Return how FastAPI is told which errors a route can answer with, and the form that they have."""
    content = {"application/json": {"schema": answer_schema(form)}}
    return {status: {"description": _MEANINGS[status], "content": content} for status in statuses}


ANY_ROUTE = errors(401, 431, 500)
"""The errors of every route."""
_GENERATION = (400, 403, 404, 408, 409, 413, 429, 503, 504)
GENERATION = errors(*_GENERATION)
"""Those of the routes that generate."""


def all_errors(form: type[BaseModel]) -> Responses:
    """Return how FastAPI is told of the errors of a route that generates, all in a form of their own."""
    return errors(401, 431, 500, *_GENERATION, form=form)


def content(description: str, schema: Mapping[str, Any], media_type: str) -> Responses:
    """Return how FastAPI is told of an answer that is not JSON."""
    return {200: {"description": description, "content": {media_type: {"schema": schema}}}}


def answer(model: type[BaseModel], description: str, *, stream: type[BaseModel] | None = None) -> Responses:
    """Return how FastAPI is told of a route's answer, and of the events that come instead as a `stream`."""
    content = {"application/json": {"schema": answer_schema(model)}}
    if stream is not None:
        content["text/event-stream"] = {"schema": body_schema(stream)}
    return {200: {"description": description, "content": content}}


def request_body(
    model: type[BaseModel], *, required: bool = True, media_type: str = "application/json"
) -> dict[str, Any]:
    """Return what is added to a route's description for a body that the route reads by itself."""
    content = {media_type: {"schema": body_schema(model)}}
    return {"requestBody": {"required": required, "content": content}}


def query(model: type[BaseModel]) -> dict[str, Any]:
    """Return what is added to a route's description for parameters of the URL that the route reads by itself."""
    fields = model.model_json_schema()["properties"].items()
    return {"parameters": [{"name": name, "in": "query", "required": False, "schema": field} for name, field in fields]}


def prioritized_request(model: type[BaseModel]) -> dict[str, Any]:
    """Return what is added to the description of a route whose priority may come in a header."""
    header = {"name": PRIORITY_HEADER, "in": "header", "description": "A level, or its name.", "required": False}
    return {**request_body(model), "parameters": [{**header, "schema": {"type": "string"}}]}


def describe(app: FastAPI) -> None:
    """Let the description of `app` be complete: with the schemas of bodies, and the ways in which a key is shown."""
    plain = app.openapi

    def complete() -> dict[str, Any]:
        schema = plain()
        components = schema.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        SchemaWriter(schemas).write(schema["paths"])
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)  # FastAPI's own, of which no route makes use
                if path in OPEN_PATHS:
                    operation["security"] = []
                    operation["responses"].pop("401", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        schema["security"] = [{"bearer": []}, {"header": []}, {}]
        return schema

    app.openapi = complete  # type: ignore[method-assign]  # as FastAPI has it done


def docs_router() -> APIRouter:
    """Return the routes of the page, whose parts are served from here."""
    router = APIRouter(include_in_schema=False)

    @router.get(DOCS_PATH)
    async def docs(request: Request) -> HTMLResponse:
        """Return the page. Its addresses are relative, so that it works wherever the app is mounted."""
        return get_swagger_ui_html(
            openapi_url=OPENAPI_PATH.removeprefix("/"),
            title="llamalane",
            swagger_js_url="docs/swagger-ui-bundle.js",
            swagger_css_url="docs/swagger-ui.css",
            swagger_favicon_url="docs/favicon.png",
        )

    @router.get(DOCS_PATH + "/{name}")
    async def asset(name: str) -> Response:
        """Return a part of the page."""
        if name not in _ASSETS:
            raise HTTPException(404)
        data = (resources.files("fastapi_offline") / "static" / name).read_bytes()
        return Response(data, media_type=_ASSETS[name], headers={"Cache-Control": "max-age=86400"})

    return router

"""Errors as answers to HTTP requests, in the shape that the clients of each path know."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Scope

from llamalane.api.anthropic import MESSAGES_PATH
from llamalane.api.anthropic.errors import message_error
from llamalane.api.errors import answer_for
from llamalane.api.request_scope import request_id_of, route_path


def respond(error: Exception, scope: Scope) -> JSONResponse:
    """Return the answer to the request with this scope, which ended with `error`."""
    answer = answer_for(error)
    if f"{route_path(scope)}/".startswith(f"{MESSAGES_PATH}/"):
        return JSONResponse(message_error(answer, request_id_of(scope)), answer.status, dict(answer.headers))
    return answer.response()


async def handle_error(request: Request, error: Exception) -> JSONResponse:
    """Answer a request that ended with `error`."""
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        what = "no such endpoint" if error.status_code == 404 else "the endpoint does not have this method"
        message = f"{what}: {request.method} {request.url.path}"
        error = HTTPException(error.status_code, message, dict(error.headers or {}))
    return respond(error, request.scope)

"""Errors as HTTP answers in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from llamalane.errors import (
    BatchConflictError,
    BatchesOffError,
    ChatTemplateError,
    DeadlineExceededError,
    EngineClosedError,
    FileTooLargeError,
    GrammarError,
    InputTooLongError,
    InvalidPriorityError,
    LaneDownError,
    LlamalaneError,
    ModelLoadError,
    PermissionDeniedError,
    PromptTooLongError,
    QueueFullError,
    RequestCancelledError,
    RequestError,
    RequestFailedError,
    RequestShedError,
    StorageLimitError,
    SupersededError,
    TenantLimitError,
    ThreadsUnsupportedError,
    UnavailableError,
    UnknownBatchError,
    UnknownFileError,
    UnknownModelError,
    WrongTaskError,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """How a class of errors is told: the HTTP status, and OpenAI's `type` and `code`."""

    status: int
    type: str
    code: str | None = None


# An error has the kind of the nearest class above it.
KINDS: Mapping[type[Exception], Kind] = {
    RequestError: Kind(400, "invalid_request_error"),
    ThreadsUnsupportedError: Kind(400, "invalid_request_error", "thread_unsupported_request"),
    InvalidPriorityError: Kind(400, "invalid_request_error", "invalid_priority"),
    PromptTooLongError: Kind(400, "invalid_request_error", "context_length_exceeded"),
    InputTooLongError: Kind(400, "invalid_request_error", "context_length_exceeded"),
    ChatTemplateError: Kind(400, "invalid_request_error", "chat_template_error"),
    GrammarError: Kind(400, "invalid_request_error", "grammar_too_large"),
    PermissionDeniedError: Kind(403, "permission_error", "permission_denied"),
    UnknownModelError: Kind(404, "invalid_request_error", "model_not_found"),
    WrongTaskError: Kind(400, "invalid_request_error", "wrong_task"),
    BatchesOffError: Kind(404, "invalid_request_error", "batches_off"),
    UnknownFileError: Kind(404, "invalid_request_error", "file_not_found"),
    UnknownBatchError: Kind(404, "invalid_request_error", "batch_not_found"),
    FileTooLargeError: Kind(413, "invalid_request_error", "file_too_large"),
    StorageLimitError: Kind(400, "invalid_request_error", "storage_limit"),
    BatchConflictError: Kind(409, "conflict_error", "batch_conflict"),
    UnavailableError: Kind(503, "service_unavailable_error"),
    QueueFullError: Kind(429, "rate_limit_error", "queue_full"),
    TenantLimitError: Kind(429, "rate_limit_error", "tenant_limit"),
    RequestShedError: Kind(429, "rate_limit_error", "shed"),
    DeadlineExceededError: Kind(504, "timeout_error", "deadline_exceeded"),
    EngineClosedError: Kind(503, "service_unavailable_error", "engine_unavailable"),
    LaneDownError: Kind(503, "service_unavailable_error", "lane_down"),
    RequestFailedError: Kind(500, "server_error", "request_failed"),
    SupersededError: Kind(409, "conflict_error", "superseded"),
    RequestCancelledError: Kind(409, "conflict_error", "cancelled"),
    ModelLoadError: Kind(503, "service_unavailable_error", "model_load_failed"),
    LlamalaneError: Kind(500, "server_error"),
    Exception: Kind(500, "server_error", "internal_error"),
}

# What the framework refuses by itself.
HTTP_KINDS: Mapping[int, Kind] = {
    401: Kind(401, "authentication_error", "invalid_api_key"),
    404: Kind(404, "invalid_request_error", "unknown_url"),
    405: Kind(405, "invalid_request_error", "method_not_allowed"),
    408: Kind(408, "invalid_request_error", "request_timeout"),
    413: Kind(413, "invalid_request_error", "request_too_large"),
    431: Kind(431, "invalid_request_error", "headers_too_large"),
}


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error, ready to be sent."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> JSONResponse:
        """Return the answer as an HTTP response."""
        return JSONResponse(self.body, self.status, dict(self.headers))


def answer_for(error: Exception) -> ErrorAnswer:
    """Return how `error` is told to a client; what is not an error of ours is told without its words."""
    if isinstance(error, HTTPException):
        kind = HTTP_KINDS.get(error.status_code, Kind(error.status_code, "invalid_request_error"))
        return _answer(kind, error.detail, headers=error.headers or {})
    kind = kind_of(type(error))
    message = str(error) if isinstance(error, LlamalaneError) else "the server failed; its log says more"
    return _answer(kind, message, param=getattr(error, "param", None), headers=_retry_headers(error))


def kind_of(error: type[Exception]) -> Kind:
    """Return how errors of a class are told."""
    return next(KINDS[base] for base in error.__mro__ if base in KINDS)


def _retry_headers(error: Exception) -> Mapping[str, str]:
    if isinstance(error, UnavailableError) and error.retry_after is not None:
        return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, SupersededError | RequestCancelledError | BatchConflictError):
        # OpenAI's clients send again what got 409: they would replace the newer request in their turn, bring back
        # what was cancelled on purpose, or ask for what cannot be had.
        return {"x-should-retry": "false"}
    return {}


def request_not_found(name: str) -> ErrorAnswer:
    """Return the answer to a question about a request that is not there, or no longer."""
    kind = Kind(404, "invalid_request_error", "request_not_found")
    return _answer(kind, f"no request {name[:200]!r} waits or runs; GET /v1/queue lists those that do")


def response_not_found(name: str) -> ErrorAnswer:
    """Return the answer to whoever asks for a response that was given before."""
    kind = Kind(404, "invalid_request_error", "response_not_found")
    return _answer(
        kind,
        f"no response {name[:200]!r}: this server stores none; POST /v1/responses answers with the whole of it, and "
        "one that is under way is cancelled by closing the connection",
    )


def lane_not_found(name: str, known: Iterable[str]) -> ErrorAnswer:
    """Return the answer to a wish for a lane that is not there."""
    kind = Kind(404, "invalid_request_error", "lane_not_found")
    return _answer(kind, f"no lane is called {name[:200]!r}; there are {', '.join(known)}")


def _answer(kind: Kind, message: str, *, param: str | None = None, headers: Mapping[str, str] = {}) -> ErrorAnswer:
    error = {"message": message, "type": kind.type, "param": param, "code": kind.code}
    return ErrorAnswer(kind.status, {"error": error}, headers)

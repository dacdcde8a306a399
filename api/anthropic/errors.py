"""Errors in Anthropic's shape: `{"type": "error", "error": {"type", "message", "param", "code"}, "request_id"}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llamalane.api.errors import ErrorAnswer, kind_of
from llamalane.errors import ThreadsUnsupportedError

TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""What Anthropic calls errors, by their status; of the others, the server's are `api_error`."""

_NO_THREADS = kind_of(ThreadsUnsupportedError).code
# By this its client learns that it has to send whole conversations, and does.
_NO_THREADS_DETAILS = {"error_code": _NO_THREADS, "unsupported": ["thread"]}


def message_error(answer: ErrorAnswer, request_id: str | None = None) -> dict[str, Any]:
    """Return the body of an error, or the data of an event that tells it."""
    kind = TYPES.get(answer.status, "invalid_request_error" if answer.status < 500 else "api_error")
    error = {**answer.body["error"], "type": kind}
    if error["code"] == _NO_THREADS:
        error["details"] = _NO_THREADS_DETAILS
    body = {"type": "error", "error": error}
    return body if request_id is None else {**body, "request_id": request_id}

"""Errors in Anthropic's shape: `{"type": "error", "error": {"type", "message", "param", "code"}, "request_id"}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llamalane.api.errors import ErrorAnswer

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


def message_error(answer: ErrorAnswer, request_id: str | None = None) -> dict[str, Any]:
    """Return the body of an error, or the data of an event that tells it."""
    kind = TYPES.get(answer.status, "invalid_request_error" if answer.status < 500 else "api_error")
    body = {"type": "error", "error": {**answer.body["error"], "type": kind}}
    return body if request_id is None else {**body, "request_id": request_id}

"""What every HTTP request passes on its way in: it gets an id, and one log line tells how it went."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from opentelemetry import trace
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llamalane.api.error_responses import respond
from llamalane.api.request_scope import route_path, set_request_id
from llamalane.clock import Clock, MonotonicClock
from llamalane.ids import Level
from llamalane.scheduler import EmbeddingResult, Progress, Result

logger = logging.getLogger("llamalane.api")
access_logger = logging.getLogger("llamalane.api.access")

OPEN_PATHS = frozenset({"/health", "/v1/health"})
"""Load balancers ask these, and have no key."""
METRICS_PATH = "/metrics"
EVENTS_PATH = "/dashboard/events"
QUIET_PATHS = OPEN_PATHS | {METRICS_PATH, EVENTS_PATH}
CLIENT_CLOSED_REQUEST = 499
"""Only for the log: there is nobody left to read it (nginx's number)."""

CountResponse = Callable[[str, int], None]
"""Counts an answer, by its endpoint and its status."""

_RECORD = "llamalane.record"
_ID_HEADERS = (b"x-request-id", b"request-id")
"""Where clients look for it: OpenAI's, and Anthropic's."""
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_NO_ENDPOINT = "none"


@dataclass(slots=True)
class RequestRecord:
    """What the log line of a request tells; times are in seconds."""

    id: str
    method: str
    path: str
    status: int | None = None
    key: str = ""
    level: Level | None = None
    wait: float | None = None
    first_token: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None
    trace: str = ""

    def add(self, result: Result) -> None:
        """Take in a finished choice."""
        self._add_times(result.timings.wait, result.timings.first_token)
        self._add_tokens(result.usage.prompt_tokens, result.usage.cached_tokens, result.usage.completion_tokens)

    def add_unfinished(self, progress: Progress) -> None:
        """Take in a choice that was cancelled, or has failed, if it ever had a place."""
        if progress.wait is not None:
            self._add_times(progress.wait, progress.first_token)
            self._add_tokens(progress.prompt_tokens, progress.cached_tokens, progress.completion_tokens)

    def fields(self, duration: float) -> dict[str, Any]:
        """Return what is known, by names that no field of Python's log records has."""
        fields: dict[str, Any] = {
            "request_id": self.id,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "key": self.key or None,
            "priority": self.level,
            "queue_seconds": _rounded(self.wait),
            "first_token_seconds": _rounded(self.first_token),
            "error": self.error,
            "trace_id": self.trace or None,
            "duration_seconds": _rounded(duration),
        }
        if self.wait is not None:
            fields["prompt_tokens"] = self.prompt_tokens
            fields["cached_tokens"] = self.cached_tokens
            fields["completion_tokens"] = self.completion_tokens
        return {name: value for name, value in fields.items() if value is not None}

    def add_texts(self, results: Sequence[EmbeddingResult]) -> None:
        """Take in texts that were embedded or scored; the first one's wait counts."""
        self.wait = results[0].wait
        self.prompt_tokens += sum(result.prompt_tokens for result in results)

    def line(self, duration: float) -> str:
        """Return the log line; nothing that a client chose can break it, or look like one of its fields."""
        fields = [f"id={self.id}", f"{quote(self.method)} {quote(self.path)}", f"status={self.status}"]
        if self.key:
            fields.append(f"key={self.key}")
        if self.level is not None:
            fields.append(f"level={self.level}")
        if self.wait is not None:
            fields.append(f"wait={self.wait:.4f}")
            if self.first_token is not None:
                fields.append(f"first_token={self.first_token:.4f}")
            fields += [f"prompt_tokens={self.prompt_tokens}", f"cached_tokens={self.cached_tokens}"]
            fields.append(f"completion_tokens={self.completion_tokens}")
        if self.error is not None:
            fields.append(f"error={self.error}")
        if self.trace:
            fields.append(f"trace={self.trace}")
        return " ".join([*fields, f"duration={duration:.4f}"])

    def _add_times(self, wait: float, first_token: float | None) -> None:
        """Let the earliest times of all choices count."""
        self.wait = wait if self.wait is None else min(self.wait, wait)
        if first_token is not None:
            self.first_token = first_token if self.first_token is None else min(self.first_token, first_token)

    def _add_tokens(self, prompt: int, cached: int, completion: int) -> None:
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.completion_tokens += completion


def record_of(scope: Scope) -> RequestRecord:
    """Return the record of the request with this scope."""
    record: RequestRecord = scope[_RECORD]
    return record


class RequestLog:
    """Gives each request an id, answers what nobody else has caught, counts it, and writes one log line.

    The line's parts are also attributes of the log record (`request_id`, `status`, `queue_seconds`, …), for whoever
    formats records as JSON.
    """

    def __init__(self, app: ASGIApp, count: CountResponse | None = None, clock: Clock | None = None) -> None:
        self._app = app
        self._count = count
        self._clock = clock or MonotonicClock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
        set_request_id(scope, request_id)
        record = scope[_RECORD] = RequestRecord(request_id, scope["method"], scope["path"], trace=_trace_id())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = [*message.get("headers", ()), *((name, request_id.encode()) for name in _ID_HEADERS)]
                message = {**message, "headers": headers}
            await send(message)

        begin = self._clock.now()
        try:
            await self._run(record, scope, receive, send_with_id)
        finally:
            self._tell(record, scope, self._clock.now() - begin)

    async def _run(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            record.status = CLIENT_CLOSED_REQUEST
        except Exception as error:
            logger.exception("request %s failed", record.id)
            if record.status is not None:
                raise  # the answer has begun: the server must cut it off
            await respond(error, scope)(scope, receive, send)

    def _tell(self, record: RequestRecord, scope: Scope, duration: float) -> None:
        if self._count is not None and record.status is not None:
            self._count(getattr(scope.get("route"), "path_format", _NO_ENDPOINT), record.status)
        level = logging.DEBUG if route_path(scope) in QUIET_PATHS else logging.INFO
        if access_logger.isEnabledFor(level):
            access_logger.log(level, "%s", record.line(duration), extra=record.fields(duration))


def _trace_id() -> str:
    """Return the id of the trace that the request belongs to, an empty one where nobody traces."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else ""


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)

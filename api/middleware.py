"""What every HTTP request passes on its way in: its id and log line, and the bound on its body."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llamalane.api.errors import answer_for
from llamalane.clock import Clock, MonotonicClock
from llamalane.ids import Level
from llamalane.scheduler import Result

logger = logging.getLogger("llamalane.api")
access_logger = logging.getLogger("llamalane.api.access")

OPEN_PATHS = frozenset({"/health", "/v1/health"})
"""Load balancers ask these, and have no key."""
METRICS_PATH = "/metrics"
QUIET_PATHS = OPEN_PATHS | {METRICS_PATH}
CLIENT_CLOSED_REQUEST = 499
"""Only for the log: there is nobody left to read it (nginx's number)."""

_DIGITS = 20
"""A length of more digits is too large whatever they are, and Python would not read them."""
_RECORD = "llamalane.record"
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


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

    def add(self, result: Result) -> None:
        """Take in a finished choice. Of the times, the earliest of all choices count."""
        timings, usage = result.timings, result.usage
        self.wait = timings.wait if self.wait is None else min(self.wait, timings.wait)
        self.first_token = (
            timings.first_token if self.first_token is None else min(self.first_token, timings.first_token)
        )
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.completion_tokens += usage.completion_tokens

    def line(self, duration: float) -> str:
        """Return the log line."""
        fields = [f"id={self.id}", f"{self.method} {quote(self.path)}", f"status={self.status}"]
        if self.key:
            fields.append(f"key={self.key}")
        if self.level is not None:
            fields.append(f"level={self.level}")
        if self.wait is not None and self.first_token is not None:
            fields += [f"wait={self.wait:.4f}", f"first_token={self.first_token:.4f}"]
            fields += [f"prompt_tokens={self.prompt_tokens}", f"cached_tokens={self.cached_tokens}"]
            fields.append(f"completion_tokens={self.completion_tokens}")
        if self.error is not None:
            fields.append(f"error={self.error}")
        return " ".join([*fields, f"duration={duration:.4f}"])


def record_of(scope: Scope) -> RequestRecord:
    """Return the record of the request with this scope."""
    record: RequestRecord = scope[_RECORD]
    return record


class RequestLog:
    """Gives each request an id, answers what nobody else has caught, and writes one log line."""

    def __init__(self, app: ASGIApp, clock: Clock | None = None) -> None:
        self._app = app
        self._clock = clock or MonotonicClock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
        record = scope[_RECORD] = RequestRecord(request_id, scope["method"], scope["path"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        begin = self._clock.now()
        try:
            await self._run(record, scope, receive, send_with_id)
        finally:
            level = logging.DEBUG if route_path(scope) in QUIET_PATHS else logging.INFO
            if access_logger.isEnabledFor(level):
                access_logger.log(level, "%s", record.line(self._clock.now() - begin))

    async def _run(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            record.status = CLIENT_CLOSED_REQUEST
        except Exception as error:
            logger.exception("request %s failed", record.id)
            if record.status is not None:
                raise  # the answer has begun: the server must cut it off
            await answer_for(error).response()(scope, receive, send)


class LimitBody:
    """Refuses a body of more than `limit` bytes: unread when its length is told, else as soon as it is met.

    `larger` names the paths that take more.
    """

    def __init__(self, app: ASGIApp, limit: int, larger: Mapping[str, int] = {}) -> None:
        self._app = app
        self._limit = limit
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._larger.get(route_path(scope), self._limit)
        refusal = HTTPException(413, f"the body is too large: at most {limit} bytes are taken")
        length = Headers(scope=scope).get("content-length", "")
        if length.isascii() and length.isdigit() and (len(length) > _DIGITS or int(length) > limit):
            await answer_for(refusal).response()(scope, receive, send)
            return
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > limit:
                    raise refusal
            return message

        await self._app(scope, receive_within_limit, send)


def route_path(scope: Scope) -> str:
    """Return the path below the place where the app is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path

"""Bounds on what a request may send, and for how long: on its head, and on its body."""

from __future__ import annotations

import math
from collections.abc import Mapping

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llamalane.api.error_responses import respond
from llamalane.api.request_scope import route_path

MAX_HEADERS = 128
"""More headers than any client sends by itself."""
MAX_HEAD_BYTES = 64 * 1024
"""The most bytes that a request's path, query and headers may have together."""
MIB = 1024 * 1024

_DIGITS = 20
"""A length of more digits is too large whatever they are, and Python would not read them."""
_CLOSE = {"Connection": "close"}
"""What was not read of a request must not be taken for the next one."""


class LimitHead:
    """Refuses a request with more than `MAX_HEADERS` headers, or a head of more than `MAX_HEAD_BYTES`.

    Every server has bounds of its own; these hold whichever it is, and tell the client what they are.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        refusal = _head_refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await respond(refusal, scope)(scope, receive, send)


class LimitBody:
    """Refuses a body of more than `limit` bytes, or one that comes too slowly; `larger` names the paths that take more.

    A body that is too large is refused unread when its length is told, else as soon as it is met. One that is small
    has to be there after `seconds`; for each MiB of a larger one there are as many more.
    """

    def __init__(self, app: ASGIApp, limit: int, seconds: float = math.inf, larger: Mapping[str, int] = {}) -> None:
        self._app = app
        self._limit = limit
        self._seconds = seconds
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._larger.get(route_path(scope), self._limit)
        length = Headers(scope=scope).get("content-length", "")
        if length.isascii() and length.isdigit() and (len(length) > _DIGITS or int(length) > limit):
            await respond(_too_large(limit), scope)(scope, receive, send)
            return
        await self._app(scope, BodyReader(receive, limit, self._seconds), send)


class BodyReader:
    """Receives a body, within the bounds that `LimitBody` has; then whatever follows, at any time."""

    def __init__(self, receive: Receive, limit: int, seconds: float) -> None:
        self._receive = receive
        self._limit = limit
        self._seconds = seconds
        self._begin: float | None = None
        self._complete = False
        self._received = 0

    async def __call__(self) -> Message:
        """Return the next message; raises `HTTPException` when a bound is met."""
        if self._complete:
            return await self._receive()
        message = await self._next_piece()
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._received > self._limit:
                raise _too_large(self._limit)
        return message

    async def _next_piece(self) -> Message:
        if self._begin is None:
            self._begin = anyio.current_time()
        allowed = self._seconds * (1 + self._received / MIB)
        with anyio.CancelScope(deadline=self._begin + allowed) as scope:
            return await self._receive()
        assert scope.cancelled_caught
        raise HTTPException(408, f"the body comes too slowly: {self._received} bytes within {allowed:g} s", _CLOSE)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the body is too large: at most {limit} bytes are taken", _CLOSE)


def _head_refusal(scope: Scope) -> HTTPException | None:
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS:
        message = f"the request has {len(headers)} headers, which are too many: at most {MAX_HEADERS} are taken"
        return HTTPException(431, message, _CLOSE)
    size = sum(len(name) + len(value) for name, value in headers)
    size += len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    if size > MAX_HEAD_BYTES:
        message = f"the request's path and headers have {size} bytes, which are too many: at most {MAX_HEAD_BYTES}"
        return HTTPException(431, message, _CLOSE)
    return None

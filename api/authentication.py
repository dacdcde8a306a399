"""Who asks: finds the caller of each request by the API key that it shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from llamalane.api.error_responses import respond
from llamalane.api.keys import Caller
from llamalane.api.middleware import record_of
from llamalane.api.request_scope import route_path

Admit = Callable[[str, Sequence[bytes]], Caller | None]
"""Returns who may come in, given the path and the keys that are shown; None for nobody."""

_CALLER = "llamalane.caller"


class Authenticate:
    """Lets in whom `admit` does; a key is shown as `Authorization: Bearer` or as `x-api-key`.

    `open_paths` are open to all.
    """

    def __init__(self, app: ASGIApp, admit: Admit, open_paths: Collection[str]) -> None:
        self._app = app
        self._admit = admit
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or route_path(scope) in self._open_paths:
            await self._app(scope, receive, send)
            return
        caller = self._admit(route_path(scope), _shown(Headers(scope=scope)))
        if caller is None:
            await respond(_refusal(), scope)(scope, receive, send)
            return
        scope[_CALLER] = caller
        record_of(scope).key = caller.name
        await self._app(scope, receive, send)


def caller_of(scope: Scope) -> Caller:
    """Return who makes the request with this scope."""
    caller: Caller = scope[_CALLER]
    return caller


def _shown(headers: Headers) -> list[bytes]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    shown = [token.strip()] if scheme.lower() == "bearer" else []
    shown.append(headers.get("x-api-key", ""))
    return [key.encode("latin-1") for key in shown if key]


def _refusal() -> HTTPException:
    message = "the API key is missing or wrong: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'"
    return HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

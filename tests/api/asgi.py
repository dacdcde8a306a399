"""Drives an ASGI app without a server, one message at a time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import anyio
import httpx
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from fastapi import FastAPI
from starlette.types import Message

LOCAL = "http://server"


@contextlib.asynccontextmanager
async def client_of(app: FastAPI, headers: Mapping[str, str] | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose answers come in one piece."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url=LOCAL, headers=headers) as client:
        yield client


class Exchange:
    """One request whose answer is read while it is being made, and whose client can leave at any time."""

    def __init__(self, sent: MemoryObjectReceiveStream[Message], gone: anyio.Event) -> None:
        self._sent = sent
        self._gone = gone
        self.ended = anyio.Event()

    @property
    def sent(self) -> int:
        """How many messages the app has sent that were not read."""
        return self._sent.statistics().current_buffer_used

    async def next(self) -> Message:
        """Wait for what the app sends next."""
        return await self._sent.receive()

    async def body(self) -> bytes:
        """Wait for the next piece of the answer's body."""
        message = await self.next()
        assert message["type"] == "http.response.body"
        body: bytes = message["body"]
        return body

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()


@contextlib.asynccontextmanager
async def exchange(
    app: FastAPI, path: str, body: Mapping[str, Any] | Sequence[bytes], content_type: str = "application/json"
) -> AsyncIterator[Exchange]:
    """POST `body`, given in JSON or in pieces of bytes. The block ends when the app is done with the request."""
    send_stream, receive_stream = anyio.create_memory_object_stream[Message](100)
    gone = anyio.Event()
    request = Exchange(receive_stream, gone)
    async with anyio.create_task_group() as tasks, send_stream, receive_stream:
        pieces = [json.dumps(body).encode()] if isinstance(body, Mapping) else body
        tasks.start_soon(_run, app, path, pieces, content_type, request, send_stream)
        yield request
        await request.ended.wait()


async def _run(
    app: FastAPI,
    path: str,
    pieces: Sequence[bytes],
    content_type: str,
    request: Exchange,
    sent: MemoryObjectSendStream[Message],
) -> None:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", content_type.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    unread = list(reversed(pieces))

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": bool(unread)}
        await request._gone.wait()
        return {"type": "http.disconnect"}

    try:
        await app(scope, receive, sent.send)
    finally:
        request.ended.set()

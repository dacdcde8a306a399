"""A server that streams what a test tells it to, and notes what it was asked."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute

from llamalane.bench.exchange import Target


@dataclass(slots=True)
class Asked:
    """One request, and when it was read and each piece of its answer was sent."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    read: float
    sent: list[float] = field(default_factory=list)


Answer = Callable[[Asked], Sequence[bytes | None]]
"""Gives the pieces of an answer; None holds the connection open, else it is closed after the last piece."""


@dataclass(slots=True)
class FakeServer:
    """What the server was asked so far, and how it is reached; `held` counts the connections held open."""

    port: int
    asked: list[Asked] = field(default_factory=list)
    held: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(0))

    def target(self, path: str = "", **options: Any) -> Target:
        """The server's endpoint, below `path`."""
        return Target(url=f"http://127.0.0.1:{self.port}{path}", model="fake", **options)


@asynccontextmanager
async def fake_server(answer: Answer) -> AsyncIterator[FakeServer]:
    """Serve `answer` on a free port."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        server = FakeServer(listener.extra(SocketAttribute.local_port))

        async def handle(stream: ByteStream) -> None:
            async with stream:
                try:
                    asked = await _read_request(stream)
                    server.asked.append(asked)
                    for piece in answer(asked):
                        if piece is None:
                            server.held.release()
                            await anyio.sleep_forever()
                        else:
                            await stream.send(piece)
                            asked.sent.append(time.monotonic())
                except (anyio.BrokenResourceError, anyio.EndOfStream):
                    return  # the client left, as a stopped one does

        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, handle)
            yield server
            group.cancel_scope.cancel()


async def _read_request(stream: ByteStream) -> Asked:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(rest) < int(headers["content-length"]):
        rest += await stream.receive()
    return Asked(first.split()[1], headers, json.loads(rest), time.monotonic())


def head(status: str = "200 OK", kind: str = "text/event-stream") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


END = chunk(b"")


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def token(text: str) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})


def chat_token(text: str | None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def usage(prompt: int, output: int, cached: int = 0) -> bytes:
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return event({"choices": [], "usage": counts})


DONE = b"data: [DONE]\n\n"


def full_answer(asked: Asked) -> Sequence[bytes]:
    """As many tokens as were asked for, each sent on its own."""
    count = asked.body["max_tokens"]
    pieces = [head(), *(chunk(token(" word")) for _ in range(count))]
    return [*pieces, chunk(usage(prompt=10, output=count) + DONE), END]

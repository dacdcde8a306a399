"""Server-sent events in OpenAI's chunk format, encoded with as little work per token as possible."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
from starlette.requests import ClientDisconnect
from starlette.types import Send

DONE = b"data: [DONE]\n\n"
WAITING = "waiting"
"""What a comment says where nothing more is known."""

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events before passing them on
)


def encode_event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """Return `data` as one event, which may have a name."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _json(data) + b"\n\n"


def encode_comment(text: str) -> bytes:
    """Return a comment of one line, which clients drop."""
    return b": %s\n\n" % text.encode()


class TextFrame:
    """Everything of a chunk but its text, encoded once."""

    __slots__ = ("_head", "_tail")

    def __init__(self, head: bytes, tail: bytes) -> None:
        self._head = head
        self._tail = tail

    def encode(self, text: str) -> bytes:
        """Return the chunk that brings `text`."""
        return self._head + json.dumps(text).encode() + self._tail


class ChunkEncoder:
    """Encodes the chunks of one stream; `envelope` is what they have in common.

    With `usage`, every chunk says `"usage": null`, as OpenAI's do when the last one brings the usage.
    """

    def __init__(self, envelope: Mapping[str, Any], *, usage: bool) -> None:
        self._envelope = {**envelope, "usage": None} if usage else dict(envelope)
        self._head = b"data: " + _json(self._envelope)[:-1] + b',"choices":['
        self._tail = b"]}\n\n"

    def text_frame(self, before: str, after: str) -> TextFrame:
        """Return the frame of the chunks whose choice is `before` + a text in JSON + `after`."""
        return TextFrame(self._head + before.encode(), after.encode() + self._tail)

    def chunk(self, *choices: Mapping[str, Any], **more: Any) -> bytes:
        """Return one chunk with `choices`, and with `more` beside them."""
        return encode_event({**self._envelope, "choices": choices, **more})


class EventWriter:
    """Writes the events of one response; several tasks may write, one event follows the other.

    The response's head goes out with the first event: until then, `begun` is false, and the answer can still be
    another one. Raises `ClientDisconnect` when the server says that nobody listens any more.

    `describe` says what a comment tells that is sent while there is nothing else, on one line.
    """

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self.begun = False
        self.describe: Callable[[], str] = lambda: WAITING
        self._send = send
        self._headers = [*HEADERS, *((name.lower().encode(), value.encode()) for name, value in headers.items())]
        self._busy = False
        self._stopped = False
        self._free: anyio.Event | None = None
        self._last_write = time.monotonic()

    async def write(self, events: bytes) -> None:
        """Send whole events."""
        if self._busy:  # seldom: a lock would cost more than all the rest of a write
            await self._turn()
        self._busy = True
        try:
            await self._say(events, more=True)
        finally:
            self._busy = False
            if self._free is not None:
                self._free.set()
                self._free = None
        self._last_write = time.monotonic()

    async def stop(self) -> None:
        """Wait for a write under way; whoever writes later waits until cancelled, which cuts no event off."""
        if self._stopped:
            return
        if self._busy:
            await self._turn()
        self._busy = self._stopped = True

    async def end(self, events: bytes) -> None:
        """Send the last events and end the response, after all other writing."""
        await self._say(events, more=False)

    async def ping_when_silent(self, interval: float) -> None:
        """Send a comment whenever nothing was written for `interval` seconds, so that no proxy gives up."""
        while True:
            silence = time.monotonic() - self._last_write
            if silence >= interval:
                await self.write(encode_comment(self.describe()))
            else:
                await anyio.sleep(interval - silence)

    async def _turn(self) -> None:
        while self._busy:
            if self._free is None:
                self._free = anyio.Event()
            await self._free.wait()

    async def _say(self, events: bytes, *, more: bool) -> None:
        try:
            if not self.begun:
                self.begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._send({"type": "http.response.body", "body": events, "more_body": more})
        except OSError as error:
            raise ClientDisconnect from error


async def while_pinging(writer: EventWriter, interval: float, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work`, which writes, with comments whenever it is silent for `interval` seconds; no event is cut off.

    Raises the first error of the two, when the other one has been cancelled.
    """
    failure: Exception | None = None

    async def guard(writing: Callable[[], Awaitable[None]]) -> None:
        nonlocal failure
        try:
            await writing()
        except Exception as error:
            failure = failure or error
        await writer.stop()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(guard, functools.partial(writer.ping_when_silent, interval))
        await guard(work)
    if failure is not None:
        raise failure


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

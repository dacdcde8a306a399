"""A single reply as server-sent events, in whatever form an endpoint has for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from llamalane.api.orders import Note, Order
from llamalane.api.reply import Content, Event
from llamalane.api.sse import EventWriter, while_pinging
from llamalane.scheduler import Result, TextPiece


class ReplyStream(ABC):
    """Writes the one reply of an order as it comes: content, thoughts and calls of tools."""

    def __init__(self, order: Order[Any], writer: EventWriter, note: Note) -> None:
        self._order = order
        self._writer = writer
        self._note = note

    @abstractmethod
    def opening(self) -> bytes:
        """Return the events before the reply."""

    @abstractmethod
    def tell(self, event: Event) -> bytes:
        """Return the events that tell a part of the reply."""

    @abstractmethod
    def ending(self, result: Result) -> bytes:
        """Return the events after the reply."""

    @abstractmethod
    def failure(self, error: Exception) -> bytes:
        """Return the events with which a stream ends that has begun, and which `error` broke off."""

    async def run(self, ping_after: float) -> bytes:
        """Write all events, and a comment after `ping_after` seconds without any; returns the last ones, unwritten.

        Raises the reply's error, or `ClientDisconnect` when the client is gone.
        """
        await while_pinging(self._writer, ping_after, self._follow)
        result = await self._order.handles[0].result()
        self._note(result)
        return self.ending(result)

    async def _follow(self) -> None:
        format, handle = self._order.reply(0), self._order.handles[0]
        reader = None if format is None else format.reader()
        pieces: AsyncIterator[str | TextPiece] = aiter(handle)
        unsaid = self.opening()
        try:
            async for piece in pieces:
                text = piece if isinstance(piece, str) else piece.text
                events = [Content(text)] if reader is None else reader.feed(text)
                if said := unsaid + b"".join(map(self.tell, events)):
                    await self._writer.write(said)
                unsaid = b""
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()  # trio warns of a generator that was left to the garbage collector
        await handle.result()
        held_back = [] if reader is None else reader.end()
        if said := unsaid + b"".join(map(self.tell, held_back)):
            await self._writer.write(said)

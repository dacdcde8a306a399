"""A single reply as server-sent events, in whatever form an endpoint has for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any

from llamalane.api.orders import Note, Order
from llamalane.api.reply import Content, Event
from llamalane.api.sse import EventWriter, while_pinging
from llamalane.scheduler import OutputToken, Result, TextPiece


class ReplyStream(ABC):
    """Writes the one reply of an order as it comes: content, thoughts and calls of tools."""

    def __init__(self, order: Order[Any], writer: EventWriter, note: Note) -> None:
        self._order = order
        self._writer = writer
        self._note = note
        self._unsaid = b""
        """The events before the reply, until they are written with the first of its text."""

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
    def breaking_off(self, error: Exception) -> bytes:
        """Return the events with which the reply is broken off because of `error`."""

    def hear(self, tokens: Sequence[OutputToken]) -> None:
        """Take note of the tokens of the text that is told next; asked for only with log probabilities."""
        raise NotImplementedError

    def failure(self, error: Exception) -> bytes:
        """Return the events with which a stream ends that has begun, and which `error` broke off."""
        return self._unsaid + self.breaking_off(error)

    async def run(self, ping_after: float) -> bytes:
        """Write all events, and a comment after `ping_after` seconds without any; returns the last ones, unwritten.

        Raises the reply's error, or `ClientDisconnect` when the client is gone.
        """
        self._unsaid = self.opening()
        await while_pinging(self._writer, ping_after, self._follow)
        result = await self._order.handles[0].result()
        self._note(result)
        return self._unsaid + self.ending(result)

    async def _follow(self) -> None:
        order, format, handle = self._order, self._order.reply(0), self._order.handles[0]
        reader = None if format is None else format.reader()
        pieces: AsyncIterator[str | TextPiece] = handle.pieces() if order.logprobs else aiter(handle)
        try:
            async for piece in pieces:
                if isinstance(piece, TextPiece):
                    self.hear(piece.tokens)
                    piece = piece.text
                await self._say([Content(piece)] if reader is None else reader.feed(piece))
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()  # trio warns of a generator that was left to the garbage collector
        await handle.result()
        if reader is not None:
            await self._say(reader.end())

    async def _say(self, events: Iterable[Event]) -> None:
        if said := self._unsaid + b"".join(map(self.tell, events)):
            self._unsaid = b""
            await self._writer.write(said)

"""A message as server-sent events."""

from __future__ import annotations

from typing import Any

from llamalane.api.anthropic.bodies import MessagesBody
from llamalane.api.anthropic.content import Blocks, message_of, stop_of, usage_of
from llamalane.api.anthropic.errors import message_error
from llamalane.api.errors import answer_for
from llamalane.api.orders import Note, Order, TokenCounts
from llamalane.api.reply import CallStart, Event
from llamalane.api.reply_stream import ReplyStream
from llamalane.api.sse import EventWriter, TextFrame, encode_event
from llamalane.scheduler import Result

_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""The type of the deltas of a block, by the block's, and what they call their text."""


class MessageStream(ReplyStream):
    """Writes a message as it comes: content blocks one after the other.

    The first event goes out with the first of a block, when it is known how much of the prompt was there before.
    """

    def __init__(self, order: Order[MessagesBody], writer: EventWriter, note: Note) -> None:
        super().__init__(order, writer, note)
        self._blocks = Blocks()
        self._frame: TextFrame | None = None

    def opening(self) -> bytes:
        """Return nothing."""
        return b""

    def tell(self, event: Event) -> bytes:
        """Return the events that tell a part of the reply."""
        said, before = b"", self._blocks.index
        block = self._blocks.begin(event)
        if block is not None:
            said = self._between(before) + _event("content_block_start", index=before + 1, content_block=block)
            self._frame = _delta_frame(self._blocks)
        if isinstance(event, CallStart):
            return said
        assert self._frame is not None, "a block is open"
        return said + self._frame.encode(event.text)

    def ending(self, result: Result) -> bytes:
        """Return the events after the reply."""
        order = self._order
        told = _event(
            "message_delta",
            delta=stop_of(order, result, called=self._blocks.called),
            usage=usage_of(order, order.counts([result])),
            **order.summary([result]),
        )
        return self._between(self._blocks.index) + told + _event("message_stop")

    def breaking_off(self, error: Exception) -> bytes:
        """Return the event with which the message is broken off because of `error`."""
        return encode_event(message_error(answer_for(error)), "error")

    def _between(self, index: int) -> bytes:
        """Return the event that ends block number `index`, or the first event of all if there was none."""
        if index >= 0:
            return _event("content_block_stop", index=index)
        progress = self._order.handles[0].progress
        tokens = TokenCounts(progress.prompt_tokens, progress.cached_tokens, completion=0)
        return _event("message_start", message=message_of(self._order, tokens))


def _event(name: str, **fields: Any) -> bytes:
    return encode_event({"type": name, **fields}, name)


def _delta_frame(blocks: Blocks) -> TextFrame:
    """Return the frame of the events that bring the text of the block that is open."""
    delta, text = _DELTAS[blocks.kind]
    head = (
        'event: content_block_delta\ndata: {"type":"content_block_delta",'
        f'"index":{blocks.index},"delta":{{"type":"{delta}","{text}":'
    )
    return TextFrame(head.encode(), b"}}\n\n")

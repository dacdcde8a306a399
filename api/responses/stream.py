"""A response as events, each with a name and a number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llamalane.api.orders import Note, Order
from llamalane.api.reply import CallStart, Event
from llamalane.api.reply_stream import ReplyStream
from llamalane.api.responses.answer import begun, ended, failed, status_of
from llamalane.api.responses.body import ResponsesBody
from llamalane.api.responses.output import COMPLETED, CallItem, Item, MessageItem, Output
from llamalane.api.sse import EventWriter, encode_event
from llamalane.scheduler import OutputToken, Result


class ResponseStream(ReplyStream):
    """Writes a response as it comes; its events are counted from 0."""

    def __init__(self, order: Order[ResponsesBody], writer: EventWriter, note: Note) -> None:
        super().__init__(order, writer, note)
        self._beginning = begun(order)
        self._output = Output(order.id)
        self._count = 0
        self._frame = b"", b""
        """What stands before and after the number of an event that brings text of the last item."""

    def opening(self) -> bytes:
        """Return the events before the output."""
        return self._event("response.created", response=self._beginning) + self._event(
            "response.in_progress", response=self._beginning
        )

    def hear(self, tokens: Sequence[OutputToken]) -> None:
        """Take note of the tokens of the text that is told next."""
        self._output.hear(tokens)

    def tell(self, event: Event) -> bytes:
        """Return the events that tell a part of the output."""
        last = self._output.last
        item, logprobs = self._output.add(event)
        turn = b"" if item is last else self._close(last, COMPLETED) + self._open(item)
        return turn if isinstance(event, CallStart) else turn + self._delta(item, event.text, logprobs)

    def ending(self, result: Result) -> bytes:
        """Return the events after the output."""
        last = self._output.last
        self._output.end()
        item = self._output.last
        turn = b"" if last is not None or item is None else self._open(item)
        turn += self._close(item, status_of(result))
        response = ended(self._order, self._beginning, self._output, result)
        return turn + self._event(f"response.{response['status']}", response=response)

    def breaking_off(self, error: Exception) -> bytes:
        """Return the event that tells of `error`, with the output so far."""
        return self._event("response.failed", response=failed(self._beginning, self._output, error))

    def _open(self, item: Item) -> bytes:
        place = {"item_id": item.id, "output_index": item.index}
        added = self._event("response.output_item.added", output_index=item.index, item=item.opened())
        if item.part is not None:
            place["content_index"] = 0
            added += self._event("response.content_part.added", **place, part=item.opened_part())
        name = f"{item.events}.delta"
        head = json.dumps({"type": name, **place}, separators=(",", ":"))[:-1]
        self._frame = f'event: {name}\ndata: {head},"sequence_number":'.encode(), b"}\n\n"
        return added

    def _delta(self, item: Item, text: str, logprobs: Sequence[dict[str, Any]]) -> bytes:
        """Return the event that brings text, with as little work as possible: there are as many as tokens."""
        head, tail = self._frame
        told = f'{self._number()},"delta":{json.dumps(text)}'
        if isinstance(item, MessageItem):
            told += f',"logprobs":{json.dumps(logprobs) if logprobs else "[]"}'
        return head + told.encode() + tail

    def _close(self, item: Item | None, status: str) -> bytes:
        """Return the events after the text of `item`, if there is one."""
        if item is None:
            return b""
        place = {"item_id": item.id, "output_index": item.index}
        told = item.told(status)
        name = f"{item.events}.done"
        if isinstance(item, CallItem):
            done = self._event(name, **place, name=item.call.name, arguments=item.text)
        else:
            place["content_index"] = 0
            [part] = told["content"]
            logprobs = {"logprobs": part["logprobs"]} if isinstance(item, MessageItem) else {}
            done = self._event(name, **place, text=item.text, **logprobs)
            done += self._event("response.content_part.done", **place, part=part)
        return done + self._event("response.output_item.done", output_index=item.index, item=told)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        return encode_event({"type": name, "sequence_number": self._number(), **fields}, name)

    def _number(self) -> int:
        self._count += 1
        return self._count - 1

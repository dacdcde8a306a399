"""The items of a response's output, as they come to be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from llamalane.api.logprobs import response_logprobs
from llamalane.api.reply import CallStart, Content, Event, Reasoning, ReplyFormat
from llamalane.scheduler import OutputToken, Result, TextPiece

IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


class Item(ABC):
    """One item of an output; `index` is its place there."""

    prefix: ClassVar[str]
    part: ClassVar[str | None]
    """The type of its only part; None if it has no parts."""
    events: ClassVar[str]
    """What the events with its text are called, before `.delta` and `.done`."""

    def __init__(self, order_id: str, index: int) -> None:
        self.id = f"{self.prefix}_{order_id.rpartition('-')[2]}_{index}"
        self.index = index
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """Its text so far."""
        return "".join(self._texts)

    def add(self, text: str) -> None:
        """Add to its text."""
        self._texts.append(text)

    def opened(self) -> dict[str, Any]:
        """Return the item as it is told before its text."""
        return self.described(IN_PROGRESS, None)

    def opened_part(self) -> dict[str, Any]:
        """Return its only part, if it has parts, as it is told before its text."""
        return self.described_part("")

    def told(self, status: str) -> dict[str, Any]:
        """Return the item with its text."""
        return self.described(status, self.text)

    @abstractmethod
    def described(self, status: str, text: str | None) -> dict[str, Any]:
        """Return the item with `text`; None while it has no parts."""

    def described_part(self, text: str) -> dict[str, Any]:
        """Return its only part, if it has parts, with `text`."""
        return {"type": self.part, "text": text}


class ThoughtsItem(Item):
    """What the model thought."""

    prefix = "rs"
    part = "reasoning_text"
    events = "response.reasoning_text"

    def described(self, status: str, text: str | None) -> dict[str, Any]:
        """Return the item with `text`."""
        content = [] if text is None else [self.described_part(text)]
        return {"id": self.id, "type": "reasoning", "summary": [], "content": content, "status": status}


class MessageItem(Item):
    """What the model says."""

    prefix = "msg"
    part = "output_text"
    events = "response.output_text"

    def __init__(self, order_id: str, index: int) -> None:
        super().__init__(order_id, index)
        self.logprobs: list[dict[str, Any]] = []

    def described(self, status: str, text: str | None) -> dict[str, Any]:
        """Return the item with `text`."""
        content = [] if text is None else [self.described_part(text)]
        return {"id": self.id, "type": "message", "role": "assistant", "content": content, "status": status}

    def described_part(self, text: str) -> dict[str, Any]:
        """Return its only part with `text`, and the log probabilities of that."""
        logprobs = self.logprobs if text else []
        return {**super().described_part(text), "annotations": [], "logprobs": logprobs}


class CallItem(Item):
    """A call of a function; its text is the arguments."""

    prefix = "fc"
    part = None
    events = "response.function_call_arguments"

    def __init__(self, order_id: str, index: int, call: CallStart) -> None:
        super().__init__(order_id, index)
        self.call = call

    def described(self, status: str, text: str | None) -> dict[str, Any]:
        """Return the item with `text` as its arguments."""
        call = {"call_id": self.call.id, "name": self.call.name, "arguments": text or ""}
        return {"id": self.id, "type": "function_call", **call, "status": status}


class Output:
    """The items so far. Only the last one is added to, and each of them but for the last is complete."""

    def __init__(self, order_id: str) -> None:
        self.items: list[Item] = []
        self._order_id = order_id
        self._tokens: list[OutputToken] = []
        """Those that were heard since the last text of a message."""

    @property
    def last(self) -> Item | None:
        """The item that is added to."""
        return self.items[-1] if self.items else None

    def hear(self, tokens: Iterable[OutputToken]) -> None:
        """Take note of the tokens of the text that comes next."""
        self._tokens += tokens

    def add(self, event: Event) -> tuple[Item, list[dict[str, Any]]]:
        """Take in what was told; returns the item that it belongs to, and the log probabilities of its tokens."""
        last = self.last
        match event:
            case CallStart():
                return self._begin(CallItem(self._order_id, len(self.items), event)), []
            case Reasoning() if not isinstance(last, ThoughtsItem):
                last = self._begin(ThoughtsItem(self._order_id, len(self.items)))
            case Content() if not isinstance(last, MessageItem):
                last = self._begin(MessageItem(self._order_id, len(self.items)))
        assert last is not None, "arguments follow the start of their call"
        last.add(event.text)
        if not isinstance(last, MessageItem) or not self._tokens:
            return last, []
        logprobs = response_logprobs(_tokens_of(event.text, self._tokens))
        self._tokens.clear()
        last.logprobs += logprobs
        return last, logprobs

    def end(self) -> None:
        """Take in the end. An output without anything is an empty message."""
        if not self.items:
            self._begin(MessageItem(self._order_id, 0))

    def told(self, status: str) -> list[dict[str, Any]]:
        """Return all items; `status` is that of the last one."""
        return [item.told(status if item is self.last else COMPLETED) for item in self.items]

    def _begin(self, item: Item) -> Item:
        self.items.append(item)
        return item


def read_output(order_id: str, result: Result, format: ReplyFormat | None) -> Output:
    """Return the output of a finished response, read in `format` if it is not all content."""
    output = Output(order_id)
    reader = None if format is None else format.reader()
    for piece in _pieces_of(result):
        output.hear(piece.tokens)
        for event in [Content(piece.text)] if reader is None else reader.feed(piece.text):
            output.add(event)
    for event in [] if reader is None else reader.end():
        output.add(event)
    output.end()
    return output


def _pieces_of(result: Result) -> list[TextPiece]:
    """Return the text in pieces that begin with their token, or in one where tokens are not told."""
    if not result.logprobs:
        return [TextPiece(result.text, ())] if result.text else []
    starts = [0, *(token.start for token in result.logprobs[1:]), len(result.text)]
    return [
        TextPiece(result.text[starts[index] : starts[index + 1]], (token,))
        for index, token in enumerate(result.logprobs)
    ]


def _tokens_of(text: str, heard: Sequence[OutputToken]) -> Sequence[OutputToken]:
    """Return which of the tokens that were heard make `text`: the last ones, as far as it takes."""
    wanted, found = text.encode(), b""
    for first in range(len(heard) - 1, -1, -1):
        token = heard[first]
        found = (token.text.encode() if token.bytes is None else token.bytes) + found
        if wanted in found:
            return heard[first:]
    return heard

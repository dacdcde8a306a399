"""Replies with thoughts and calls of tools, as `/v1/chat/completions` tells them."""

from __future__ import annotations

from typing import Any

from llamalane.api.reply import Call, CallArguments, CallStart, Content, Event, Reasoning, Reply, ReplyReader
from llamalane.api.sse import ChunkEncoder, TextFrame
from llamalane.scheduler import FinishReason


def message_of(reply: Reply) -> dict[str, Any]:
    """Return the message of a finished choice; what a reply does not have is left out, or null."""
    nothing_else = not (reply.calls or reply.reasoning)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.content if reply.content or nothing_else else None,
        "refusal": None,
    }
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [_whole(call) for call in reply.calls]
    return message


def finish_of(finish: FinishReason, *, called: bool) -> str:
    """Return why a reply ended: `tool_calls` if it ended by itself and calls tools."""
    return "tool_calls" if called and finish is FinishReason.STOP else finish.value


class ReplyChunks:
    """Encodes the chunks of one choice of a stream; `content` is the frame of those with content."""

    def __init__(self, encoder: ChunkEncoder, index: int, reader: ReplyReader, content: TextFrame) -> None:
        self.called = False
        """Whether a call has begun."""
        self._encoder = encoder
        self._index = index
        self._reader = reader
        self._content = content

    def encode(self, text: str) -> bytes:
        """Return the chunks that the next piece of text completes, perhaps none."""
        return b"".join(map(self._chunk, self._reader.feed(text)))

    def end(self) -> bytes:
        """Return the chunks of what was held back."""
        return b"".join(map(self._chunk, self._reader.end()))

    def _chunk(self, event: Event) -> bytes:
        match event:
            case Content(text):
                return self._content.encode(text)
            case Reasoning(text):
                delta: dict[str, Any] = {"reasoning_content": text}
            case CallStart(index, name, function):
                self.called = True
                delta = {"tool_calls": [{"index": index, **_whole(Call(name, function, ""))}]}
            case CallArguments(index, text):
                delta = {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        choice = {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._encoder.chunk(choice)


def _whole(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}

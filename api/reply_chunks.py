"""Replies with thoughts and calls of tools, as `/v1/chat/completions` tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llamalane.api.logprobs import chat_logprobs
from llamalane.api.reply import Call, CallArguments, CallStart, Content, Event, Reasoning, Reply, ReplyReader
from llamalane.api.sse import ChunkEncoder, TextFrame
from llamalane.scheduler import FinishReason, OutputToken, TextPiece


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
    """Encodes the chunks of one choice of a stream; `content` is the frame of those with content.

    Log probabilities are those of all tokens, tags and thoughts among them: each goes with the first chunk that is
    told once it is there.
    """

    def __init__(self, encoder: ChunkEncoder, index: int, reader: ReplyReader, content: TextFrame) -> None:
        self.called = False
        """Whether a call has begun."""
        self._encoder = encoder
        self._index = index
        self._reader = reader
        self._content = content
        self._tokens: list[OutputToken] = []

    def encode(self, piece: str | TextPiece) -> bytes:
        """Return the chunks that the next piece of text completes, perhaps none."""
        if isinstance(piece, str):
            return b"".join(map(self._chunk, self._reader.feed(piece)))
        self._tokens += piece.tokens
        return b"".join(map(self._chunk, self._reader.feed(piece.text)))

    def end(self) -> bytes:
        """Return the chunks of what was held back."""
        chunks = b"".join(map(self._chunk, self._reader.end()))
        return chunks + self._delta({}) if self._tokens else chunks

    def _chunk(self, event: Event) -> bytes:
        match event:
            case Content(text):
                return self._delta({"content": text}) if self._tokens else self._content.encode(text)
            case Reasoning(text):
                return self._delta({"reasoning_content": text})
            case CallStart(index, name, function):
                self.called = True
                return self._delta({"tool_calls": [{"index": index, **_whole(Call(name, function, ""))}]})
            case CallArguments(index, text):
                return self._delta({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        logprobs = chat_logprobs(self._tokens) if self._tokens else None
        self._tokens.clear()
        choice = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._encoder.chunk(choice)


def _whole(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}

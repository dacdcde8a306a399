"""Takes a recorded answer apart: when each token came, how many there were, and what went wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h11

from llamalane.bench.exchange import Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one request met. Times are in seconds of the monotonic clock.

    Attributes:
        client: the number of its client.
        started: when its connection was asked for.
        ended: when the last of its answer came; None when its client was stopped first.
        token_times: when each piece of text came: one token, or several that make up a character.
        asked_tokens: how many tokens it asked for.
        output_tokens: how many the server says that it generated; None when it did not say.
        prompt_tokens: how many the server says that the prompt had.
        cached_tokens: how many of those the server took from a cache.
        status: the HTTP status; None when none came.
        error: what went wrong, in a few words; None when nothing did.
    """

    client: int
    started: float
    ended: float | None
    token_times: tuple[float, ...]
    asked_tokens: int
    output_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    status: int | None
    error: str | None

    @property
    def cut(self) -> bool:
        """Whether its client was stopped before the answer was whole."""
        return self.ended is None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from the start to the first piece of text; None when none came."""
        return self.token_times[0] - self.started if self.token_times else None

    @property
    def gaps(self) -> list[float]:
        """Seconds from each piece of text to the next."""
        return [later - earlier for earlier, later in zip(self.token_times, self.token_times[1:], strict=False)]


def read(recording: Recording) -> Record:
    """Take `recording` apart."""
    reader = _Reader()
    try:
        for time, line in _lines(recording, reader):
            reader.take(time, line)
    except h11.RemoteProtocolError as error:
        reader.error = reader.error or f"not HTTP: {error}"
    last = recording.blocks[-1][0] if recording.blocks else recording.ended
    return Record(
        client=recording.client,
        started=recording.started,
        ended=last if recording.ended is not None else None,
        token_times=tuple(reader.token_times),
        asked_tokens=recording.asked_tokens,
        output_tokens=reader.usage.get("completion_tokens"),
        prompt_tokens=reader.usage.get("prompt_tokens"),
        cached_tokens=(reader.usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        status=reader.status,
        error=_error(recording, reader),
    )


class _Reader:
    """Gathers what the lines of an answer say."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.token_times: list[float] = []
        self.usage: dict[str, Any] = {}
        self.error: str | None = None
        self.done = False

    def take(self, time: float, line: bytes) -> None:
        if self.status != 200:
            self.error = f"HTTP {self.status}: {_message(line)}"
        elif line == b"data: [DONE]":
            self.done = True
        elif line.startswith(b"data:"):
            self._take_event(time, line[len(b"data:") :])

    def _take_event(self, time: float, data: bytes) -> None:
        try:
            event = json.loads(data)
        except ValueError:
            self.error = f"an event is not JSON: {data[:80]!r}"
            return
        if "error" in event:
            self.error = f"while streaming: {_message(data)}"
            return
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", ()):
            text = choice["text"] if "text" in choice else choice.get("delta", {}).get("content")
            if text:
                self.token_times.append(time)


def _lines(recording: Recording, reader: _Reader) -> Iterator[tuple[float, bytes]]:
    """Give each line of the answer's body with the time when it was whole; an error's body is one line."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "peer")]))
    connection.send(h11.EndOfMessage())
    rest = b""
    time = recording.started
    for time, block in recording.blocks:
        connection.receive_data(block)
        for event in iter(connection.next_event, h11.NEED_DATA):
            if isinstance(event, h11.Response):
                reader.status = event.status_code
            elif isinstance(event, h11.Data):
                rest += bytes(event.data)
                if reader.status == 200:
                    *whole, rest = rest.split(b"\n")
                    yield from ((time, line.rstrip(b"\r")) for line in whole)
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                break
    if rest:
        yield time, rest


def _message(data: bytes) -> str:
    """Return the message of an error in OpenAI's shape, or the text itself."""
    try:
        error = json.loads(data)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return data[:200].decode(errors="replace")


def _error(recording: Recording, reader: _Reader) -> str | None:
    if recording.fault or reader.error:
        return reader.error or recording.fault
    if recording.ended is None or reader.done:
        return None
    if reader.status is None:
        return "the connection was closed before an answer"
    return f"HTTP {reader.status}: the stream ended early"

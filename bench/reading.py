"""Takes a recorded answer apart: when each token came, how many there were, and what went wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h11

from llamalane.bench.exchange import Recording

REFUSED = frozenset({429, 503})
"""What a server answers that has no room."""


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
        asked: when the same was asked first: earlier than `started` if it was refused before.
        kind: the class of requests that it belongs to.
        retry_after: how many seconds the server told the client to stay away; None when it did not say.
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
    asked: float
    kind: str = ""
    retry_after: float | None = None

    @property
    def cut(self) -> bool:
        """Whether its client was stopped before the answer was whole."""
        return self.ended is None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from the start to the first piece of text; None when none came."""
        return self.token_times[0] - self.started if self.token_times else None

    @property
    def refused(self) -> bool:
        """Whether the server had no room for it."""
        return self.status in REFUSED

    @property
    def tokens(self) -> int:
        """How many tokens were generated: as the server says, else as many as pieces of text came."""
        return len(self.token_times) if self.output_tokens is None else self.output_tokens

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds for each token after the first one, in the mean; None when there are fewer than two."""
        if self.tokens < 2 or not self.token_times:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.tokens - 1)

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
        asked=recording.started if recording.asked is None else recording.asked,
        kind=recording.kind,
        retry_after=reader.retry_after,
    )


class _Reader:
    """Gathers what the lines of an answer say."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.retry_after: float | None = None
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
                reader.retry_after = _retry_after(dict(event.headers))
            elif isinstance(event, h11.Data):
                rest += bytes(event.data)
                if reader.status == 200:
                    *whole, rest = rest.split(b"\n")
                    yield from ((time, line.rstrip(b"\r")) for line in whole)
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                break
    if rest:
        yield time, rest


def _retry_after(headers: dict[bytes, bytes]) -> float | None:
    """Return what the header says in seconds; None without it, and for a date, which no server here sends."""
    try:
        return max(0.0, float(headers[b"retry-after"]))
    except (KeyError, ValueError):
        return None


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

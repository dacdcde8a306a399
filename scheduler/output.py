"""A request's text as it grows, cut exactly at a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

StopWhen = Callable[[str], bool]
"""Is given an output's text as it comes, piece by piece, and returns whether the output ends with that piece.

It belongs to one output. It is called on the event loop and must not raise.
"""


class Decoder(Protocol):
    """Turns tokens into text, one at a time."""

    def add(self, token: int) -> str:
        """Take the next token and return the characters that it completes."""

    def flush(self) -> str:
        """Return what is held back."""


class OutputText:
    """Decodes tokens and holds text back while it might become a stop string."""

    def __init__(self, decoder: Decoder, stop: Sequence[str] = (), stop_when: StopWhen | None = None) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._stop_when = stop_when
        self._held = ""
        self._parts: list[str] = []
        self.stopped = False
        """Whether the output has to end: a stop string was met, and dropped, or what was shown is all."""
        self.met: str | None = None
        """The stop string that was met."""

    @property
    def text(self) -> str:
        """All text released so far."""
        return "".join(self._parts)

    @property
    def held(self) -> int:
        """How many whole characters are held back."""
        return len(self._held)

    def add(self, token: int) -> str:
        """Take the next token and return the text that can be shown now."""
        return self._take(self._decoder.add(token))

    def finish(self) -> str:
        """Return the rest, once, at the end of the output."""
        shown = self._take(self._decoder.flush())
        rest, self._held = self._held, ""
        self._parts.append(rest)
        return shown + rest

    def _take(self, text: str) -> str:
        if self.stopped:
            return ""
        shown = self._held + text
        self._held = ""
        if self._stop and shown:
            # The one that is complete first counts, and of two the longer one: however the text comes in pieces.
            found = [(at + len(stop), at) for stop in self._stop if (at := shown.find(stop)) >= 0]
            if found:
                self.stopped = True
                end, begin = min(found)
                self.met = shown[begin:end]
                shown = shown[:begin]
            else:
                split = len(shown) - self._beginning(shown)
                shown, self._held = shown[:split], shown[split:]
        if self._stop_when is not None and self._stop_when(shown):
            self.stopped = True
        self._parts.append(shown)
        return shown

    def _beginning(self, text: str) -> int:
        """Return the length of the longest end of `text` that could be the beginning of a stop string."""
        longest = max(len(stop) for stop in self._stop) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0

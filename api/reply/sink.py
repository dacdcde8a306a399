"""Puts together the events of a reply."""

from __future__ import annotations

from collections.abc import Callable

from llamalane.api.reply.events import CallArguments, CallStart, Content, Event

NewId = Callable[[], str]
"""Returns an id for a call of a tool."""


class Sink:
    """Gathers events until they are taken. Space around calls is no content; that of a reply without calls is.

    With `single`, the reply is over, and `done`, when its first call is: nothing more is gathered.
    """

    def __init__(self, new_id: NewId, *, single: bool = False) -> None:
        self.done = False
        self._new_id = new_id
        self._single = single
        self._calls = 0
        self._space = ""
        self._after_call = False
        self._events: list[Event] = []

    def content(self, text: str) -> None:
        """Add to the content."""
        if self._after_call:
            text = text.lstrip()
        if self.done or not text:
            return
        self._after_call = False
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._events.append(Content(shown))

    def start(self, name: str) -> None:
        """Begin a call."""
        if not self.done:
            self._space = ""
            self._events.append(CallStart(self._calls, self._new_id(), name))
            self._calls += 1

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that was begun last."""
        if text and not self.done:
            self._events.append(CallArguments(self._calls - 1, text))

    def end_call(self) -> None:
        """End the call that was begun last."""
        self._after_call = True
        self.done = self._single

    def end(self) -> None:
        """End the reply."""
        if self._space and not self._calls:
            self._events.append(Content(self._space))
        self._space = ""

    def take(self) -> list[Event]:
        """Return what came since the last time."""
        events, self._events = self._events, []
        return events

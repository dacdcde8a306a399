"""Reads a reply as it comes."""

from __future__ import annotations

from llamalane.api.reply.calls import CallReader
from llamalane.api.reply.events import Content, Event, Reasoning, Reply, collect
from llamalane.api.reply.thinking import ThoughtReader


class ReplyReader:
    """Makes events of a reply's text, however it comes in pieces. It never fails.

    `thoughts` parts what the model thinks from its answer, and `calls` the answer into content and calls; what is None
    is not looked for. Without `show_thoughts`, thoughts are left out.
    """

    def __init__(self, thoughts: ThoughtReader | None, calls: CallReader | None, *, show_thoughts: bool = True) -> None:
        self._thoughts = thoughts
        self._calls = calls
        self._show_thoughts = show_thoughts

    @property
    def done(self) -> bool:
        """Whether nothing that follows is part of the reply."""
        return self._calls is not None and self._calls.sink.done

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of text and return what it completes."""
        thoughts, answer = ("", text) if self._thoughts is None else self._thoughts.feed(text)
        return self._events(thoughts, answer)

    def end(self) -> list[Event]:
        """Take the end of the text and return what was held back."""
        thoughts, answer = ("", "") if self._thoughts is None else self._thoughts.end()
        events = self._events(thoughts, answer)
        if self._calls is not None:
            self._calls.end()
            events += self._calls.sink.take()
        return events

    def read(self, text: str) -> Reply:
        """Take a whole reply."""
        return collect([*self.feed(text), *self.end()])

    def _events(self, thoughts: str, answer: str) -> list[Event]:
        events: list[Event] = [Reasoning(thoughts)] if thoughts and self._show_thoughts else []
        if self._calls is not None:
            self._calls.feed(answer)
            events += self._calls.sink.take()
        elif answer:
            events.append(Content(answer))
        return events

"""What the readers of calls have in common, whichever way a model writes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from llamalane.api.reply.call_object import SPACE, CallObject, Outcome
from llamalane.api.reply.marks import beginning_of
from llamalane.api.reply.sink import Sink


class CallReader(ABC):
    """Parts an output, which comes in pieces, into content and calls, and puts them into `sink`.

    What looks like a call and turns out to be none becomes content: nothing is lost, and nothing is an error. However
    the output is cut into pieces, what it makes is the same.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._text = ""
        """What was not read yet."""
        self._final = False
        """Whether nothing comes after it."""
        self._object: CallObject | None = None
        self._raw = ""
        """What was read of a call that may turn out to be none, with the mark before it."""

    def feed(self, text: str) -> None:
        """Read the next piece."""
        self._text += text
        while self._text and self._step():
            pass

    def end(self) -> None:
        """Read the end of the output."""
        self._final = True
        while self._text and self._step():
            pass
        self._give_up()
        self.sink.end()

    @abstractmethod
    def _step(self) -> bool:
        """Read on as far as one part of the format goes; returns whether that was possible with the text there is."""

    @abstractmethod
    def _resume(self) -> None:
        """Read on as content, with a call over or given up."""

    def _take(self, length: int) -> str:
        """Take so much of the text."""
        taken, self._text = self._text[:length], self._text[length:]
        return taken

    def _take_space(self) -> str:
        return self._take(len(self._text) - len(self._text.lstrip(SPACE)))

    def _at(self, *marks: str) -> str | None:
        """Return which of `marks` the text begins with: `""` if none, None if more has to come to tell."""
        for mark in marks:
            if self._text.startswith(mark):
                return mark
        cut = any(mark.startswith(self._text) for mark in marks)
        return None if cut and not self._final else ""

    def _content_until(self, mark: str) -> bool:
        """Pass text on as content up to `mark`, and take that; returns whether it was there."""
        found = self._text.find(mark)
        if found >= 0:
            self.sink.content(self._take(found))
            self._raw = self._take(len(mark))
            return True
        held = 0 if self._final else beginning_of(self._text, mark)
        self.sink.content(self._take(len(self._text) - held))
        return False

    def _read_object(self, accepts: Callable[[str], bool]) -> Outcome:
        """Read on in a call that is an object, or begin one."""
        if self._object is None:
            self._object = CallObject(accepts)
        call, known = self._object, self._object.started
        taken = self._take(call.take(self._text))
        if call.started:
            if not known:
                self._start(call.name)
            self.sink.arguments(call.take_arguments())
        else:
            self._raw += taken
        if call.outcome is Outcome.CALL:
            self._object = None
            self.sink.end_call()
        elif call.outcome is Outcome.OTHER:
            self._give_up()
        return call.outcome

    def _start(self, name: str) -> None:
        """Begin a call, which is certain from here on."""
        self._raw = ""
        self.sink.start(name)

    def _give_up(self) -> None:
        """Let what might have been a call be content."""
        raw, self._raw = self._raw, ""
        self._object = None
        self.sink.content(raw)
        self._resume()

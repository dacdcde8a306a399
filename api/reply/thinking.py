"""Parts what a model thinks from what it answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from llamalane.api.reply.marks import beginning_of


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands before and after a model's thoughts."""

    open: str
    close: str


class Thinking(enum.Enum):
    """How an output begins."""

    NONE = "none"
    """With the answer: the prompt has closed the thoughts, or there are none."""
    POSSIBLE = "possible"
    """With thoughts, if it begins with their tag."""
    OPEN = "open"
    """With thoughts: the prompt ends with their tag."""


def how_it_begins(prompt: str, tags: Tags) -> Thinking:
    """Return how an output begins that continues `prompt`."""
    end = prompt.rstrip()
    if end.endswith(tags.open):
        return Thinking.OPEN
    return Thinking.NONE if end.endswith(tags.close) else Thinking.POSSIBLE


class _Place(enum.Enum):
    BEGINNING = "before the first word"
    THOUGHTS = "thoughts"
    ANSWER = "answer"


class ThoughtReader:
    """Reads an output that comes in pieces. Space around the tags belongs to neither part."""

    def __init__(self, tags: Tags, begins: Thinking) -> None:
        self._tags = tags
        self._begins = begins
        self._place = _Place.ANSWER if begins is Thinking.NONE else _Place.BEGINNING
        self._held = ""
        self._trims = begins is not Thinking.NONE
        """Whether space that comes next is to be left out."""

    def feed(self, text: str) -> tuple[str, str]:
        """Take the next piece; returns what it adds to the thoughts and to the answer."""
        self._held += text
        if self._place is _Place.BEGINNING:
            self._begin(final=False)
        thoughts = self._read_thoughts() if self._place is _Place.THOUGHTS else ""
        return thoughts, self._read_answer() if self._place is _Place.ANSWER else ""

    def end(self) -> tuple[str, str]:
        """Take the end of the output; returns what was held back."""
        if self._place is _Place.BEGINNING:
            self._begin(final=True)
        held, self._held = self._held, ""
        return (held.rstrip(), "") if self._place is _Place.THOUGHTS else ("", held)

    def _begin(self, *, final: bool) -> None:
        """Find out what the output begins with."""
        words = self._held.lstrip()
        if words.startswith(self._tags.open):
            self._held = words[len(self._tags.open) :]
            self._place = _Place.THOUGHTS
        elif final or (words and not self._tags.open.startswith(words)):
            self._place = _Place.THOUGHTS if self._begins is Thinking.OPEN else _Place.ANSWER
            self._trims = self._begins is Thinking.OPEN

    def _read_thoughts(self) -> str:
        if self._trims:
            self._held = self._held.lstrip()
            self._trims = not self._held
        found = self._held.find(self._tags.close)
        if found >= 0:
            thoughts = self._held[:found].rstrip()
            self._held = self._held[found + len(self._tags.close) :]
            self._place, self._trims = _Place.ANSWER, True
            return thoughts
        # Space before the closing tag is left out, and the tag may have begun.
        shown = self._held[: len(self._held) - beginning_of(self._held, self._tags.close)].rstrip()
        self._held = self._held[len(shown) :]
        return shown

    def _read_answer(self) -> str:
        answer, self._held = self._held, ""
        if self._trims:
            answer = answer.lstrip()
            self._trims = not answer
        return answer

"""Finds where a JSON value ends in text that comes in pieces, without insisting that all in it is right."""

from __future__ import annotations

import enum
import re

_IN_STRING = re.compile(r'[^"\\]*')
_OUTSIDE = re.compile(r'[^"{}\[\]]*')
_SCALAR = re.compile(r"[^\s,}\]]*")


class _Kind(enum.Enum):
    NESTED = "object or list"
    STRING = "string"
    SCALAR = "number, true, false or null"


class ValueEnd:
    """Follows one JSON value from its first character to its last.

    Models make mistakes within values, such as a line break in a string, that readers can live with; only quotation
    marks, brackets and braces are looked at.
    """

    def __init__(self) -> None:
        self.ended = False
        self._kind: _Kind | None = None
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def take(self, text: str, start: int = 0) -> int:
        """Read on in `text` from `start`, which is not a space at the value's beginning.

        Returns where the value's part in `text` ends. A number ends only with the character that follows it.
        """
        if start >= len(text) or self.ended:
            return start
        if self._kind is None:
            self._kind = _kind_of(text[start])
        if self._kind is _Kind.SCALAR:
            end = _matched(_SCALAR, text, start)
            self.ended = end < len(text)
            return end
        at = start
        while at < len(text) and not self.ended:
            at = self._in_text(text, at) if self._in_string else self._between(text, at)
        return at

    def _in_text(self, text: str, at: int) -> int:
        """Read on within a string."""
        if self._escaped:
            self._escaped = False
            return at + 1
        at = _matched(_IN_STRING, text, at)
        if at == len(text):
            return at
        self._escaped = text[at] == "\\"
        if not self._escaped:
            self._in_string = False
            self.ended = self._depth == 0
        return at + 1

    def _between(self, text: str, at: int) -> int:
        """Read on between strings."""
        at = _matched(_OUTSIDE, text, at)
        if at == len(text):
            return at
        if text[at] == '"':
            self._in_string = True
        elif text[at] in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            self.ended = self._depth == 0
        return at + 1


def _kind_of(first: str) -> _Kind:
    if first in "{[":
        return _Kind.NESTED
    return _Kind.STRING if first == '"' else _Kind.SCALAR


def _matched(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    assert match is not None  # each of them matches nothing, too
    return match.end()

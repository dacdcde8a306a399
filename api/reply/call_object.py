"""Reads a call of a tool that is written as a JSON object, such as `{"name": "f", "arguments": {"x": 1}}`."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable

from llamalane.api.reply.json_text import ValueEnd

SPACE = " \t\r\n"

_NAME = "name"
_ARGUMENTS = frozenset({"arguments", "parameters"})


class Outcome(enum.Enum):
    """How far the reading of a call is."""

    READING = "reading"
    CALL = "call"
    """It was a call, and it is over."""
    OTHER = "other"
    """It is something else; nothing was told of it as a call."""


class _Place(enum.Enum):
    OPENING = "before the opening brace"
    KEY = "before or in a key"
    COLON = "before a colon"
    VALUE = "before or in a value"
    NEXT = "before a comma or the closing brace"


class CallObject:
    """Takes the text of one call, in pieces, and tells its name and its arguments as soon as they are known.

    The keys may come in any order, and others beside them are passed over. `accepts` says whether a name can be one of
    a tool. Once the call has `started`, which takes its name and the beginning of its arguments, it stays one: what is
    wrong after its arguments is left to whoever reads on, and what is wrong within them is passed on as it is.
    """

    def __init__(self, accepts: Callable[[str], bool]) -> None:
        self.outcome = Outcome.READING
        self.name = ""
        self._accepts = accepts
        self._place = _Place.OPENING
        self._key = ""
        self._element: list[str] = []
        self._end: ValueEnd | None = None
        self._has_arguments = False
        self._arguments: list[str] = []

    @property
    def started(self) -> bool:
        """Whether it is certain to be a call."""
        return bool(self.name) and self._has_arguments

    def take_arguments(self) -> str:
        """Return the arguments' text that came since the last time, once the call has started."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def take(self, text: str) -> int:
        """Read on in `text`; returns how much of it belongs to the call, all while that is still being read."""
        at = 0
        while at < len(text) and self.outcome is Outcome.READING:
            if self._end is not None:
                at = self._read_element(text, at)
            elif text[at] in SPACE:
                at += 1
            else:
                at = self._read_sign(text, at)
        return at

    def _read_sign(self, text: str, at: int) -> int:
        """Read a character between keys and values; of one that does not belong there, only the place is noted."""
        sign = text[at]
        match self._place, sign:
            case _Place.OPENING, "{":
                self._place = _Place.KEY
            case _Place.KEY, '"':
                self._end = ValueEnd()
                return at
            case _Place.COLON, ":":
                self._place = _Place.VALUE
            case _Place.VALUE, _ if sign not in ",:}]":
                return self._begin_value(sign, at)
            case _Place.NEXT, ",":
                self._place = _Place.KEY
            case ((_Place.KEY | _Place.NEXT), "}"):
                self._close()
            case _:
                self._fail()
                return at
        return at + 1

    def _begin_value(self, sign: str, at: int) -> int:
        self._end = ValueEnd()
        if self._key in _ARGUMENTS and not self._has_arguments and sign == "{":
            self._has_arguments = True
            self._element = self._arguments  # whatever comes is passed on at once
        return at

    def _read_element(self, text: str, at: int) -> int:
        """Read on in a key or a value."""
        assert self._end is not None
        end = self._end.take(text, at)
        self._element.append(text[at:end])
        if self._end.ended:
            self._end = None
            passed_on = self._element is self._arguments
            element = "" if passed_on else "".join(self._element)
            self._element = []
            if self._place is _Place.KEY:
                self._take_key(element)
            elif not passed_on:
                self._take_value(element)
            if self.outcome is Outcome.READING:
                self._place = _Place.COLON if self._place is _Place.KEY else _Place.NEXT
        return end

    def _take_key(self, element: str) -> None:
        key = _parsed(element)
        if isinstance(key, str):
            self._key = key
        else:
            self._fail()

    def _take_value(self, element: str) -> None:
        if self._key == _NAME and not self.name:
            name = _parsed(element)
            if isinstance(name, str) and name and self._accepts(name):
                self.name = name
            else:
                self._fail()
        elif self._key in _ARGUMENTS and not self._has_arguments:
            # Some models write the arguments as JSON within a string.
            value = _parsed(element)
            if value is None or isinstance(value, str):
                self._has_arguments = True
                self._arguments.append(value or "{}")
            else:
                self._fail()

    def _close(self) -> None:
        if self.name and not self._has_arguments:
            self._has_arguments = True
            self._arguments.append("{}")
        self._fail()

    def _fail(self) -> None:
        """Read no further; what has started was a call all the same."""
        self.outcome = Outcome.CALL if self.started else Outcome.OTHER


def _parsed(element: str) -> object:
    """Return what JSON means; something that nobody wants for what is not JSON, or nothing that can be sent on."""
    try:
        value = json.loads(element, strict=False)
        if isinstance(value, str):
            value.encode()  # half a surrogate pair cannot be
    except (ValueError, RecursionError):
        return False
    return value

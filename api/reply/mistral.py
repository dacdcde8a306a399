"""Calls as Mistral's models write them.

The older ones write a list, `[TOOL_CALLS][{"name": "f", "arguments": {}}]`, the newer ones each call by itself,
`[TOOL_CALLS]f[ARGS]{}`, some with an id in between, `[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}`.
"""

from __future__ import annotations

import enum
import re

from llamalane.api.reply.call_object import Outcome
from llamalane.api.reply.calls import CallReader
from llamalane.api.reply.json_text import ValueEnd
from llamalane.api.reply.sink import Sink

CALLS, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

_NAME = re.compile(r"[A-Za-z0-9_.-]*")


class _Place(enum.Enum):
    CONTENT = "content"
    HEAD = "after the mark"
    LIST = "in a list, between calls"
    OBJECT = "in a call of a list"
    NAME = "in a name"
    ID = "in an id"
    BEFORE_ARGUMENTS = "after a name"
    ARGUMENTS = "in arguments"


class MistralReader(CallReader):
    """Reads calls in either way, whichever comes."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._place = _Place.CONTENT
        self._name = ""
        self._value = ValueEnd()

    def _step(self) -> bool:
        match self._place:
            case _Place.CONTENT:
                return self._go(self._content_until(CALLS), _Place.HEAD)
            case _Place.HEAD:
                return self._read_head()
            case _Place.LIST:
                return self._read_list()
            case _Place.OBJECT:
                outcome = self._read_object(lambda name: True)
                return self._go(outcome is Outcome.CALL, _Place.LIST) or outcome is Outcome.OTHER
            case _Place.NAME:
                return self._read_name()
            case _Place.ID:
                self._raw += self._take(_length(self._text))
                return self._go(bool(self._text), _Place.BEFORE_ARGUMENTS)
            case _Place.BEFORE_ARGUMENTS:
                return self._read_arguments_mark()
            case _Place.ARGUMENTS:
                return self._read_arguments()

    def _read_head(self) -> bool:
        self._raw += self._take_space()
        if self._text.startswith("["):
            self._raw += self._take(1)
            self._place = _Place.LIST
        elif self._text:
            self._name = ""
            self._place = _Place.OBJECT if self._text.startswith("{") else _Place.NAME
        return bool(self._text)

    def _read_list(self) -> bool:
        """Go on after the list's beginning, or after a call in it."""
        self._raw += self._take_space()
        if self._text.startswith(","):
            self._raw += self._take(1) + self._take_space()
        if self._text.startswith("{"):
            self._place = _Place.OBJECT
        elif self._text.startswith("]") and not self._raw.startswith(CALLS):
            self._take(1)
            self._raw = ""
            self._resume()
        elif self._text:
            self._give_up()
        return bool(self._text)

    def _read_name(self) -> bool:
        part = self._take(_length(self._text))
        self._name += part
        self._raw += part
        if not self._text:
            return False
        if self._name:
            self._place = _Place.BEFORE_ARGUMENTS
        else:
            self._give_up()
        return True

    def _read_arguments_mark(self) -> bool:
        mark = self._at(ARGUMENTS, CALL_ID, "{")
        if mark is None:
            return False
        if mark == CALL_ID:
            self._raw += self._take(len(mark))
            self._place = _Place.ID
        elif mark:
            self._raw += self._take(len(mark)) if mark == ARGUMENTS else ""
            self._value = ValueEnd()
            self._place = _Place.ARGUMENTS
        else:
            self._give_up()
        return True

    def _read_arguments(self) -> bool:
        if self._raw:  # not one character of them was read
            self._raw += self._take_space()
            if not self._text:
                return False
            if not self._text.startswith("{"):
                self._give_up()
                return True
            self._start(self._name)
        self.sink.arguments(self._take(self._value.take(self._text)))
        if self._value.ended:
            self.sink.end_call()
            self._resume()
        return self._value.ended

    def _go(self, done: bool, place: _Place) -> bool:
        if done:
            self._place = place
        return done

    def _resume(self) -> None:
        self._place = _Place.CONTENT


def _length(text: str) -> int:
    name = _NAME.match(text)
    assert name is not None
    return name.end()

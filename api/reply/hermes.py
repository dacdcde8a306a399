"""Calls as Hermes and Qwen write them: `<tool_call>{"name": "f", "arguments": {}}</tool_call>`."""

from __future__ import annotations

import enum
import re

from llamalane.api.reply.call_object import Outcome
from llamalane.api.reply.calls import CallReader
from llamalane.api.reply.sink import Sink

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_SURPLUS = re.compile(r"[\s}\]]*")
"""What small models like to add to a call before they close it."""


class _Place(enum.Enum):
    CONTENT = "content"
    CALL = "in a call"
    AFTER = "between a call and what closes it"


class HermesReader(CallReader):
    """Reads calls between tags. A tag may hold several, and the last one need not be closed."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._place = _Place.CONTENT

    def _step(self) -> bool:
        match self._place:
            case _Place.CONTENT:
                found = self._content_until(OPEN)
                if found:
                    self._place = _Place.CALL
                return found
            case _Place.CALL:
                outcome = self._read_object(lambda name: True)
                if outcome is Outcome.CALL:
                    self._place = _Place.AFTER
                return outcome is not Outcome.READING
            case _Place.AFTER:
                return self._close()

    def _close(self) -> bool:
        surplus = _SURPLUS.match(self._text)
        assert surplus is not None
        self._take(surplus.end())
        mark = self._at(CLOSE, "{")
        if mark is None:
            return False
        if mark == "{":
            self._place = _Place.CALL
        else:
            self._take(len(mark))
            self._resume()
        return True

    def _resume(self) -> None:
        self._place = _Place.CONTENT

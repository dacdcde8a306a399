"""Calls as Llama 3 writes them: `{"name": "f", "parameters": {}}`, with or without `<|python_tag|>` before it."""

from __future__ import annotations

import enum
from collections.abc import Set

from llamalane.api.reply.call_object import Outcome
from llamalane.api.reply.calls import CallReader
from llamalane.api.reply.sink import Sink

TAG = "<|python_tag|>"
SEPARATOR = ";"


class _Place(enum.Enum):
    BEGINNING = "at the output's beginning"
    CALL = "in a call"
    AFTER = "after a call"
    CONTENT = "content"


class LlamaReader(CallReader):
    """Reads calls at an output's beginning, or after the tag.

    Nothing else tells a call from an answer in JSON, so it must be one of the tools in `names`.
    """

    def __init__(self, sink: Sink, names: Set[str]) -> None:
        super().__init__(sink)
        self._names = names
        self._place = _Place.BEGINNING

    def _step(self) -> bool:
        match self._place:
            case _Place.BEGINNING | _Place.AFTER:
                return self._begin()
            case _Place.CALL:
                outcome = self._read_object(self._names.__contains__)
                if outcome is Outcome.CALL:
                    self._place = _Place.AFTER
                return outcome is not Outcome.READING
            case _Place.CONTENT:
                found = self._content_until(TAG)
                if found:
                    self._place = _Place.CALL
                return found

    def _begin(self) -> bool:
        """Find out whether a call comes first, or next."""
        self._raw += self._take_space()
        if self._place is _Place.AFTER and SEPARATOR not in self._raw and self._text.startswith(SEPARATOR):
            self._raw += self._take(len(SEPARATOR)) + self._take_space()
        if not self._text:
            return False
        mark = self._at(TAG, "{")
        if mark is None:
            return False
        if mark:
            self._raw += self._take(len(mark)) if mark == TAG else ""
            self._place = _Place.CALL
        else:
            self._give_up()
        return True

    def _resume(self) -> None:
        self._place = _Place.CONTENT

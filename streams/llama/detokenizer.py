"""Tokens to text, one at a time, without ever showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence


class Detokenizer:
    """Turns a sequence of tokens into text.

    Bytes that do not make a whole character yet are held back; bytes that never will become U+FFFD. `shown` is what
    tokens that have no piece of text are to be shown as.
    """

    def __init__(self, pieces: Sequence[bytes], shown: Mapping[int, bytes] = {}) -> None:
        self._pieces = pieces
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """Take the next token and return the characters that it completes."""
        return self._decoder.decode(self._pieces[token] or self._shown.get(token, b""))

    def flush(self) -> str:
        """Return what is held back; nothing may follow."""
        return self._decoder.decode(b"", final=True)

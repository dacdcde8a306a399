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
        return self._decoder.decode(self._piece(token))

    def gap_before(self, token: int) -> int | None:
        """Return how many broken characters would come before the text of `token` if it came next.

        None if it has no text. Changes nothing.
        """
        piece = self._piece(token)
        held, _ = self._decoder.getstate()
        # The first byte either goes on with what is held, or begins a character of its own.
        return len((held + piece[:1]).decode(errors="replace")) - 1 if piece else None

    def flush(self) -> str:
        """Return what is held back; nothing may follow."""
        return self._decoder.decode(b"", final=True)

    def _piece(self, token: int) -> bytes:
        return self._pieces[token] or self._shown.get(token, b"")

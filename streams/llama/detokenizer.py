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
        """Return how many broken characters would come before the text of `token` if it came next: 0 or 1.

        None if it has no text. Changes nothing.
        """
        piece = self._piece(token)
        held, _ = self._decoder.getstate()
        return int(_breaks_off(held, piece)) if piece else None

    def flush(self) -> str:
        """Return what is held back; nothing may follow."""
        return self._decoder.decode(b"", final=True)

    def _piece(self, token: int) -> bytes:
        return self._pieces[token] or self._shown.get(token, b"")


def _breaks_off(held: bytes, piece: bytes) -> bool:
    """Return whether the beginning of a character that is `held` back does not go on with `piece`."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(held + piece[:1])
    except UnicodeDecodeError:
        return bool(held)
    return False

"""What tokens stand for, and where they stand in a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llamalane.streams import llama


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the vocabulary.

    Attributes:
        id: its number.
        text: what it stands for; a byte of it that is not part of a whole character is written as ``\\xf0``. A control
            token, which stands for nothing in an output, has its name.
        bytes: what it stands for in UTF-8, perhaps not whole characters; None for a control token.
    """

    id: int
    text: str
    bytes: bytes | None


Spell = Callable[[int], Token]
"""Tells what a token stands for."""


def spell(vocabulary: llama.Vocabulary, token: int) -> Token:
    """Return what a token of the vocabulary stands for."""
    piece = vocabulary.pieces[token]
    if not piece:
        return Token(token, vocabulary.text_of(token), None)
    return Token(token, piece.decode(errors="backslashreplace"), piece)


def text_of(tokens: Sequence[Token]) -> str:
    """Return the text of some tokens, with the names of control tokens in it: it can be tokenized again."""
    return b"".join(map(_written, tokens)).decode(errors="replace")


def starts_in(text: str, tokens: Sequence[Token]) -> list[int]:
    """Return at which character of `text` each of its tokens begins.

    Control tokens need not stand in it, nor the blank that some tokenizers put before a text. Where a tokenizer has
    changed the text, later tokens are as far off as its length was changed.
    """
    written = [_written(token) for token in tokens]
    detokenizer = llama.Detokenizer(written)
    starts, at = [], 0
    for number, token in enumerate(tokens):
        begin = at + (detokenizer.gap_before(number) or 0)
        starts.append(min(begin, len(text)))
        if token.bytes is None and not text.startswith(token.text, begin):
            continue
        at += len(detokenizer.add(number))
        if begin == 0 and written[number].startswith(b" ") and not text.startswith(" "):
            at -= 1
    return starts


def _written(token: Token) -> bytes:
    return token.text.encode() if token.bytes is None else token.bytes

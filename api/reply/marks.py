"""Marks in text that comes in pieces."""

from __future__ import annotations


def beginning_of(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that could be the beginning of `mark`."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if mark.startswith(text[-length:])), 0)

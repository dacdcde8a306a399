"""Marks in text that comes in pieces."""

from __future__ import annotations


def beginning_of(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that could be the beginning of `mark`."""
    first = text.find(mark[0], max(0, len(text) - len(mark) + 1))
    while first >= 0:
        if mark.startswith(text[first:]):
            return len(text) - first
        first = text.find(mark[0], first + 1)
    return 0

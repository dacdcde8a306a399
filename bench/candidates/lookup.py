"""Drafts by prompt lookup (Saxena, 2023): what followed the last few tokens when they stood in the sequence before."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_MATCH, SHORTEST_MATCH = 3, 2
"""The last three tokens are looked for, then the last two."""
LONGEST_DRAFT = 8


class PromptLookup:
    """A sequence's tokens, prompt and output, and where each few of them stood last."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self._followers: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            for length in range(SHORTEST_MATCH, LONGEST_MATCH + 1):
                if len(self.tokens) >= length:
                    self._followers[tuple(self.tokens[-length:])] = len(self.tokens)
            self.tokens.append(token)

    def draft(self, most: int = LONGEST_DRAFT) -> list[int]:
        """Return at most `most` tokens that may come next; none when the last few stand nowhere before."""
        for length in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
            start = self._followers.get(tuple(self.tokens[-length:]))
            if start is not None:
                return self.tokens[start : start + most]
        return []

"""Drafts what comes next in a sequence by looking up what came next before (prompt lookup; Saxena, 2023).

An output that quotes its prompt, as an edit of a file or a summary does, can be foretold from it: where its last few
tokens stood before, the same tokens are likely to follow again. All of this is pure: nothing here depends on time, nor
on what computes.
"""

from __future__ import annotations

from collections.abc import Sequence

FIRST_DRAFT = 2
"""The first draft of a sequence is so long at most: whether it repeats itself is not known yet."""
FIRST_REST, LONGEST_REST = 16, 256
"""A sequence whose drafts turn out wrong drafts nothing for so many tokens, and for twice as many the next time."""


class PromptLookup:
    """Finds what followed the last tokens of a sequence where they stood before.

    `tokens` are prompt and output, and may grow at their end, but not change otherwise. Each token is looked at once.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._known = 0
        """So many tokens have been entered."""
        self._after_two: dict[tuple[int, int], int] = {}
        self._after_three: dict[tuple[int, int, int], int] = {}
        """Which token came after a few others, where these stood last; the last few of all have none yet."""

    def find(self, most: int) -> list[int]:
        """Return what followed the last three tokens where they stood last before, or else the last two.

        `most` tokens, or none if those stood nowhere. What goes on up to the end of the sequence is taken to begin
        again there, as if the sequence went round in circles.
        """
        self._catch_up()
        tokens = self._tokens
        if len(tokens) < 2:
            return []
        start = self._after_three.get((tokens[-3], tokens[-2], tokens[-1])) if len(tokens) > 2 else None
        if start is None:
            start = self._after_two.get((tokens[-2], tokens[-1]))
        draft = [] if start is None else list(tokens[start : start + most])
        while draft and len(draft) < most:
            draft += draft[: most - len(draft)]
        return draft

    def _catch_up(self) -> None:
        tokens = self._tokens
        for place in range(max(self._known, 2), len(tokens)):
            second, third = tokens[place - 2], tokens[place - 1]
            self._after_two[second, third] = place
            if place > 2:
                self._after_three[tokens[place - 3], second, third] = place
        self._known = len(tokens)


class Drafter:
    """Drafts the next tokens of one sequence, the more the better its drafts turn out, and `longest` at most.

    A draft that turns out right lets the next one be twice as long; one that does not is followed by a shorter one,
    and by none for a while in the end. So a sequence that does not repeat itself loses next to nothing.
    """

    def __init__(self, tokens: Sequence[int], longest: int) -> None:
        self._tokens = tokens
        self._lookup = PromptLookup(tokens)
        self._longest = longest
        self._next = min(FIRST_DRAFT, longest)
        """How long the next draft may be."""
        self._rest = FIRST_REST
        self._rests_until = 0
        """How many tokens the sequence has when it may draft again."""

    def draft(self, most: int) -> list[int]:
        """Return at most `most` tokens that may come next; `most` is at least 1."""
        if len(self._tokens) < self._rests_until:
            return []
        return self._lookup.find(min(most, self._next))

    def note(self, drafted: int, accepted: int) -> None:
        """Learn that of so many drafted tokens the first `accepted` were right; the sequence has its new tokens."""
        if accepted == drafted:
            if drafted >= self._next:
                self._next = min(2 * self._next, self._longest)
            self._rest = max(self._rest // 2, FIRST_REST)
            return
        self._next = max(accepted, self._next // 2)
        if not self._next:
            self._next = 1
            self._rests_until = len(self._tokens) + self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)

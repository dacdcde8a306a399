"""How often finished prompts come back, level by level: what is saved of those that never do is work for nobody.

A chat continues its prompts and a batch hardly ever does, so what a batch leaves would only drive out what chats have
left. Of a level whose prompts do not come back one in so many is saved all the same, which tells when they do again.
"""

from __future__ import annotations

from llamalane.ids import Level
from llamalane.scheduler.priority import LEVELS

TRIES = 16
"""One in so many prompts is saved that are not likely to be worth it."""
_MEMORY = 64
"""About so many of the last saved prompts count."""
_TRUST = 16.0
"""All prompts are thought to come back until that many have not."""


class Comebacks:
    """Whether a prompt is worth saving, by how many of its level that were saved have come back."""

    def __init__(self) -> None:
        self._levels = {level: _Saved() for level in LEVELS}

    def worth(self, level: Level, cost: float, gain: float) -> bool:
        """Return whether to save a prompt, which costs so many seconds, and saves `gain` seconds if it comes back."""
        return self._levels[level].worth(cost, gain)

    def note_saved(self, level: Level) -> None:
        """Take note that a prompt of a level was saved."""
        self._levels[level].note_saved()

    def note_return(self, level: Level) -> None:
        """Take note that one that was saved is used by a request of a level."""
        self._levels[level].note_return()


class _Saved:
    """The saved prompts of one level, and those of them that came back; older ones count less and less."""

    def __init__(self) -> None:
        self._saved = self._returned = _TRUST
        self._passed_over = 0

    def worth(self, cost: float, gain: float) -> bool:
        if cost < gain * self._returned / self._saved:
            return True
        if cost >= gain:
            return False
        self._passed_over = (self._passed_over + 1) % TRIES
        return self._passed_over == 0

    def note_saved(self) -> None:
        fade = 1 - 1 / _MEMORY
        self._saved = fade * self._saved + 1
        self._returned *= fade

    def note_return(self) -> None:
        self._returned = min(self._returned + 1, self._saved)

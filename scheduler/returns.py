"""Those who were turned away and told when to come back: what is kept for them, and how many of them will come.

Nobody is known by name here, so a promise is only a level and a moment. Until then a free slot is kept for it from
those who ask at that level or a worse one. At that moment whoever asks first at its level is taken for the one who
comes back, and has the slot. A promise that nobody takes up is forgotten a moment later.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator

from llamalane.ids import MOST_URGENT, Level
from llamalane.scheduler.priority import LEVELS

GRACE = 0.5
"""For so many seconds after its moment a promise can be taken up."""
MOST_PROMISES = 10_000
"""So many promises are kept at once, at most: whoever is told to come back beyond that may find no slot."""

_LEAST_SHARE = 0.4
"""At least this share of those who were told to come back are thought to come."""
_LEARNING = 1 / 16
"""What one promise, taken up or not, weighs in the share of those who come back."""


class PromisedReturns:
    """The moments at which those who were turned away will be back, level by level."""

    def __init__(self) -> None:
        self._levels = {level: _LevelReturns() for level in LEVELS}

    def promise(self, level: Level, moment: float, slots: int = 1) -> None:
        """Take note that someone was told to come back at `moment`, and will ask for so many slots then."""
        room = MOST_PROMISES - sum(len(returns.coming) for returns in self._levels.values())
        for _ in range(min(slots, room)):
            self._levels[level].add(moment)

    def ask(self, level: Level, now: float) -> int:
        """Take note that someone asks for a slot, and return how many free ones are kept from it, for others.

        If a promise of its level is due, the slot is its own, and only those for more urgent ones are kept from it.
        """
        for returns in self._levels.values():
            returns.pass_time(now)
        taken_up = self._levels[level].take_up()
        return sum(len(returns.coming) for returns in self._down_to(level - taken_up))

    def expected(self, level: Level, now: float) -> float:
        """Return how many of those who were told to come back at this level or a better one are likely to come."""
        for returns in self._levels.values():
            returns.pass_time(now)
        return sum(len(returns.coming) * max(returns.share, _LEAST_SHARE) for returns in self._down_to(level))

    def _down_to(self, level: int) -> Iterator[_LevelReturns]:
        """Go through what is promised at this level and at better ones."""
        return (self._levels[better] for better in LEVELS[: level - MOST_URGENT + 1])


class _LevelReturns:
    """The promises of one level."""

    def __init__(self) -> None:
        self.coming: list[float] = []
        """The moments still to come; a heap."""
        self.due: deque[float] = deque()
        """The moments that came a short while ago, of promises that nobody has taken up; oldest first."""
        self.share = 1.0
        """Which share of the promises is taken up, lately."""
        self._last = -math.inf
        """No moment is later."""

    def add(self, moment: float) -> None:
        heapq.heappush(self.coming, moment)
        self._last = max(self._last, moment)

    def take_up(self) -> bool:
        """Take up the oldest promise that is due, and say whether there was one."""
        if not self.due:
            return False
        self.due.popleft()
        self.share += _LEARNING * (1 - self.share)
        return True

    def pass_time(self, now: float) -> None:
        """Move promises on whose moments have come, and forget those that were not taken up in time."""
        missed = 0
        if self._last + GRACE < now:  # all at once: after a long silence there may be thousands
            missed = len(self.coming) + len(self.due)
            self.coming.clear()
            self.due.clear()
        while self.coming and self.coming[0] <= now:
            self.due.append(heapq.heappop(self.coming))
        while self.due and self.due[0] + GRACE < now:
            self.due.popleft()
            missed += 1
        self.share *= (1 - _LEARNING) ** missed

"""Who gets the next free place. Pure: nothing here changes a queue or a pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from llamalane.ids import Level
from llamalane.scheduler.level_queue import W
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.waiting_line import Heads


@dataclass(frozen=True, slots=True)
class Choice(Generic[W]):
    """A request to be admitted.

    Attributes:
        by_share: its turn came from the guaranteed share.
        open_to: the least urgent level that might have taken the place.
    """

    request: W
    by_share: bool
    open_to: Level


class AdmissionPolicy:
    """Chooses among the heads of the levels.

    The level whose oldest request is the most urgent goes first, and there the tenant whose turn it is. But one
    admission in `share` goes to the request that has waited longest, whatever its level and its tenant (0: never).
    `reserve` holds, for each level, how many places are kept free for requests of that level or a better one while
    fewer than that are running.

    The share takes the oldest request among those that may take the place, and is counted for each level apart: of
    any `share` admissions to free places that a level may take, while a request of that level waits, one goes by
    share to that request or an older one. So a request is admitted after at most ``share × (r + 1)`` admissions to
    free places that its level may take; r counts the older requests, of whatever level, that wait meanwhile. One that
    comes back counts again only if it was admitted by share before. A level to which no place is ever open has no
    such bound; the configuration leaves at least one open to all.
    """

    def __init__(self, share: int, reserve: Mapping[Level, int]) -> None:
        self._share = share
        self._reserve = dict(reserve)
        self._since_share = dict.fromkeys(LEVELS, 0)
        """For each level: admissions to places that it might have taken, since the last one of them by share."""

    @property
    def reserved(self) -> int:
        """How many places are kept for levels better than the least urgent one."""
        return sum(self._reserve.values())

    def choose(self, queue: Heads[W], free: int, running: Mapping[Level, int]) -> Choice[W] | None:
        """Return whom to admit next, None for nobody: when no place is free, or those that are, are reserved."""
        open_to = self.open_to(free, running)
        if open_to is None:
            return None
        heads = [head for head in queue.heads() if head.oldest.level <= open_to]
        if not heads:
            return None
        if any(self._is_due(head.oldest.level) for head in heads):
            oldest = min((head.oldest for head in heads), key=lambda request: request.order)
            return Choice(oldest, by_share=True, open_to=open_to)
        head = min(heads, key=lambda head: (head.oldest.key, head.oldest.order))
        return Choice(head.next, by_share=False, open_to=open_to)

    def most_urgent(self, queue: Heads[W]) -> Choice[W] | None:
        """Return the most urgent of those who wait, None for nobody; it may be worth making room for."""
        head = min(queue.heads(), key=lambda head: (head.oldest.key, head.oldest.order), default=None)
        return None if head is None else Choice(head.next, by_share=False, open_to=head.next.level)

    def admitted(self, choice: Choice[W]) -> None:
        """Count an admission."""
        for level in LEVELS:
            if level <= choice.open_to:
                self._since_share[level] = 0 if choice.by_share else self._since_share[level] + 1

    def _is_due(self, level: Level) -> bool:
        return self._share > 0 and self._since_share[level] >= self._share - 1

    def open_to(self, free: int, running: Mapping[Level, int]) -> Level | None:
        """Return the least urgent level that may take a place: enough of them stay free for all better levels."""
        open_to = None
        promised = have = kept_free = 0
        for level in LEVELS:
            if free - 1 < kept_free:
                break
            open_to = level
            promised += self._reserve.get(level, 0)
            have += running.get(level, 0)
            kept_free = max(kept_free, promised - have)
        return open_to

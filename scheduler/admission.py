"""Who gets the next free place. Pure: nothing here changes a queue or a pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llamalane.ids import Level
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.queue import WaitingQueue
from llamalane.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class Choice:
    """A request to be admitted; `by_share` when its turn came from the guaranteed share."""

    request: Request
    by_share: bool


class AdmissionPolicy:
    """Chooses among the oldest requests of each level.

    The most urgent one goes first, but one admission in `share` goes to the request that has waited longest, whatever
    its level (0: never). `reserve` holds, for each level, how many places are kept free for requests of that level or
    a better one while fewer than that are running.

    So a request with r older ones waiting is admitted after at most ``share × (r + 1)`` admissions to places that are
    not reserved for others.
    """

    def __init__(self, share: int, reserve: Mapping[Level, int]) -> None:
        self._share = share
        self._reserve = dict(reserve)
        self._since_share = 0

    def choose(self, queue: WaitingQueue, free: int, running: Mapping[Level, int]) -> Choice | None:
        """Return whom to admit next, None for nobody: when no place is free, or those that are, are reserved."""
        heads = [head for head in queue.heads() if self._may_take(head.level, free, running)]
        if not heads:
            return None
        if self._share and self._since_share >= self._share - 1:
            oldest = min(queue.heads(), key=lambda request: request.order)
            if oldest in heads:
                return Choice(oldest, by_share=True)
        return Choice(min(heads, key=lambda request: (request.key, request.order)), by_share=False)

    def admitted(self, choice: Choice) -> None:
        """Count an admission."""
        self._since_share = 0 if choice.by_share else self._since_share + 1

    def _may_take(self, level: Level, free: int, running: Mapping[Level, int]) -> bool:
        """Return whether enough places stay free for all better levels if `level` takes one."""
        wanted = have = missing = 0
        for better in LEVELS:
            if better >= level:
                break
            wanted += self._reserve.get(better, 0)
            have += running.get(better, 0)
            missing = max(missing, wanted - have)
        return free - 1 >= missing

"""Which lane gives a request its place, and what cells it finds there.

Of a few lanes, all that have a free place are candidates, and production's `best_lane` chooses among them. With many,
no choice looks at all of them: the candidate is the lane where most of the request's tokens are, else the one with most
places free, however soon a request would end there. A lane keeps the cells of conversations that ended there, the
newest ones, as long as its running and paused requests leave sequences and cells for them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence

ASK_ALL = 8
"""With so many lanes or fewer, all of them are candidates; with more, only one."""


class Places:
    """The places of all lanes. `sequences` tells how many requests each lane can run, pause or keep the cells of.

    Each lane has `cells` KV cells for each of its places.
    """

    def __init__(self, places: Sequence[int], sequences: Sequence[int], cells: int) -> None:
        self.total = self.free = sum(places)
        self._free = list(places)
        self._unheld = list(sequences)
        """The sequences of each lane that no request holds; kept ones are among them."""
        self._room = [count * cells for count in places]
        """The cells of each lane that no request holds; kept ones are among them."""
        self._kept: list[OrderedDict[str, int]] = [OrderedDict() for _ in places]
        """The sessions whose cells each lane keeps, the oldest first, and how many cells each has."""
        self._lane_of: dict[str, int] = {}
        self._lanes_with: list[list[int]] = [[] for _ in range(max(places) + 1)]
        """Lanes by their number of free places, as heaps; an entry may be out of date."""
        self._listed: list[set[int]] = [set() for _ in self._lanes_with]
        for lane in range(len(places)):
            self._list(lane)

    def free_on(self, lane: int) -> int:
        """Return how many places of a lane are free."""
        return self._free[lane]

    def sequences_on(self, lane: int) -> int:
        """Return how many sequences of a lane can be taken."""
        return self._unheld[lane]

    def candidates(self, session: str) -> list[int]:
        """Return the lanes with a free place that a request of `session` may get, by their numbers."""
        if len(self._free) <= ASK_ALL:
            return [lane for lane, free in enumerate(self._free) if free]
        home = self._lane_of.get(session)
        if home is not None and self._free[home]:
            return [home]
        return [self._emptiest()] if self.free else []

    def cached(self, lane: int, session: str, tokens: int) -> int:
        """Return how many of the `tokens` of a request are in the session's cells on a lane.

        The last is never counted: its logits are needed.
        """
        return min(self._kept[lane].get(session, 0), tokens - 1)

    def take(self, lane: int, session: str, tokens: int, cells: int) -> int:
        """Take a place and a sequence of a lane for a request that will hold `cells`; return what is `cached` there."""
        cached = self.cached(lane, session, tokens)
        if self._kept[lane].pop(session, None) is not None:
            del self._lane_of[session]
        self._unheld[lane] -= 1
        self._room[lane] -= cells
        self._evict(lane)
        self._count(lane, -1)
        return cached

    def give_back(self, lane: int, session: str, kept: int, cells: int) -> None:
        """Free a place whose request held `cells`; `kept` of them stay for the next request of `session`."""
        self.give_up(lane, cells)
        self._count(lane, +1)
        if session:
            elsewhere = self._lane_of.get(session)
            if elsewhere is not None:
                self._kept[elsewhere].pop(session, None)
            self._kept[lane][session] = kept
            self._lane_of[session] = lane
            self._evict(lane)

    def pause(self, lane: int) -> None:
        """Free a place, whose request goes on holding its sequence and its cells."""
        self._count(lane, +1)

    def resume(self, lane: int) -> None:
        """Take a place for a request that holds a sequence and cells of the lane."""
        self._count(lane, -1)

    def give_up(self, lane: int, cells: int) -> None:
        """Take note that a request without a place holds its sequence and its `cells` no more."""
        self._unheld[lane] += 1
        self._room[lane] += cells

    def _evict(self, lane: int) -> None:
        """Give up the oldest kept cells until there are sequences and cells for the rest."""
        kept = self._kept[lane]
        excess = sum(kept.values()) - self._room[lane] if kept else 0
        while kept and (excess > 0 or len(kept) > self._unheld[lane]):
            session, cells = kept.popitem(last=False)
            del self._lane_of[session]
            excess -= cells

    def _emptiest(self) -> int:
        """Return the first of the lanes that have most places free; there must be one."""
        for count in range(len(self._lanes_with) - 1, 0, -1):
            heap, listed = self._lanes_with[count], self._listed[count]
            while heap:
                if self._free[heap[0]] == count:
                    return heap[0]
                listed.discard(heapq.heappop(heap))
        raise AssertionError("no place is free")

    def _count(self, lane: int, change: int) -> None:
        self._free[lane] += change
        self.free += change
        self._list(lane)

    def _list(self, lane: int) -> None:
        count = self._free[lane]
        if count and lane not in self._listed[count]:
            self._listed[count].add(lane)
            heapq.heappush(self._lanes_with[count], lane)

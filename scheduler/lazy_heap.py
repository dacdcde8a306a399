"""A heap whose items can change their rank, or leave from its middle."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
Rank = TypeVar("Rank", bound=tuple[Any, ...])


class LazyHeap(Generic[Item, Rank]):
    """Items by rank, the smallest first. No two items may have the same rank.

    An item that moves or leaves is not looked for: its entry stays behind, dead. The dead go when they come to the
    top, or when they outnumber the living; so every operation is O(log n), amortized.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Rank, Item]] = []
        self._ranks: dict[Item, Rank] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[Item]:
        """Go through the items, in no order."""
        return iter(self._ranks)

    def __contains__(self, item: Item) -> bool:
        return item in self._ranks

    def put(self, item: Item, rank: Rank) -> None:
        """Add an item, or move it to another rank."""
        self._ranks[item] = rank
        heapq.heappush(self._entries, (rank, item))
        self._bury()

    def discard(self, item: Item) -> None:
        """Take an item out; nothing happens when it is not there."""
        if self._ranks.pop(item, None) is not None:
            self._bury()

    def first(self) -> Item | None:
        """Return the item of the smallest rank, None when there is none."""
        while self._entries:
            rank, item = self._entries[0]
            if self._ranks.get(item) == rank:
                return item
            heapq.heappop(self._entries)
        return None

    def rank(self, item: Item) -> Rank | None:
        """Return an item's rank, None when it is not there."""
        return self._ranks.get(item)

    def in_order(self) -> list[Item]:
        """Return all items, the smallest rank first; O(n log n)."""
        return sorted(self._ranks, key=self._ranks.__getitem__)

    def _bury(self) -> None:
        if len(self._entries) > 2 * len(self._ranks) + 16:
            self._entries = [(rank, item) for item, rank in self._ranks.items()]
            heapq.heapify(self._entries)

"""The sequences of a shared region that no request uses: what they keep, and what becomes of it when room is wanted.

Some can run, as soon as a request takes them; others, the keepers, can only keep. What a sequence keeps can be moved to
another one at no cost, so nothing is given up for want of a sequence that can run while a keeper is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import KeysView
from dataclasses import dataclass, field

from llamalane.ids import SequenceId
from llamalane.kvcache.budget import RegionPlan
from llamalane.kvcache.changes import CellChange, Evicted, Moved, Source
from llamalane.kvcache.prefix_tree import PrefixTree


@dataclass(slots=True)
class UnusedSequences:
    """Those that keep something, each with its path in `tree` that is not pinned, and those that are empty.

    Whatever has to be done with their cells is added to the `changes` that a method is given.
    """

    plan: RegionPlan
    tree: PrefixTree[SequenceId]
    evictions: int = 0
    """How often kept cells were given up so far."""
    _kept: dict[SequenceId, int] = field(init=False)
    """Those that keep something, each with when it was used last, as a count."""
    _movable: dict[SequenceId, None] = field(init=False)
    """Those of them that can run, the ones used longest ago first."""
    _clock: int = field(init=False, default=0)
    _empty: deque[SequenceId] = field(init=False)
    """Those that can run."""
    _spare: deque[SequenceId] = field(init=False)
    """Empty keepers."""

    def __post_init__(self) -> None:
        self._kept, self._movable = {}, {}
        self._empty = deque(map(SequenceId, range(self.plan.sequences)))
        self._spare = deque(map(SequenceId, keepers(self.plan)))

    @property
    def kept(self) -> KeysView[SequenceId]:
        """Those that keep something."""
        return self._kept.keys()

    def oldest_first(self) -> list[SequenceId]:
        """Return those that keep something, the ones used longest ago first."""
        return sorted(self._kept, key=self._kept.__getitem__)

    @property
    def all(self) -> list[SequenceId]:
        """All of them."""
        return [*self._kept, *self._empty, *self._spare]

    def add(self, sequence: SequenceId) -> None:
        """Take a sequence that is used no longer; its path is what it keeps."""
        if self.tree.length(sequence):
            self._note_use(sequence)
        else:
            self.tree.remove(sequence)
            self._note_empty(sequence)

    def can_continue(self, source: SequenceId, length: int) -> bool:
        """Return whether a request that shares `length` tokens with a sequence is to run on these cells themselves.

        So it is if nothing that is kept would be lost by it, or no other sequence is to be had.
        """
        if source not in self._kept:
            return False
        alone = not self._empty and not self._spare and len(self._kept) == 1
        return alone or self.tree.length(source) == length

    def take_kept(self, source: SequenceId, length: int, changes: list[CellChange]) -> SequenceId:
        """Let a request run on what a sequence keeps, cut to `length`; returns where: a keeper's cells are moved."""
        if self.tree.length(source) > length:
            changes.append(self._cut(source, length))
        sequence = source
        if source >= self.plan.sequences:
            sequence = self.take_empty(source, changes)
            self._move(source, sequence, changes)
        self._forget(sequence)
        return sequence

    def take_empty(self, source: SequenceId | None, changes: list[CellChange]) -> SequenceId:
        """Return a sequence that can run and holds nothing, after what one keeps was moved, or given up.

        What `source` keeps is not given up for it.
        """
        while not self._empty:
            if self._spare:
                others = (sequence for sequence in self._movable if sequence != source)
                oldest = next(others, None)
                if oldest is None:
                    (oldest,) = self._movable
                self._move(oldest, self._spare.popleft(), changes)
            else:
                oldest = self._oldest(source)
                assert oldest is not None, "a sequence is free, and it is not the source's"
                changes.append(self.drop(oldest))
        return self._empty.popleft()

    def shrink(self, most: int, share: Source | None, changes: list[CellChange]) -> None:
        """Give up kept cells, those used longest ago first, until no more than `most` are.

        A request is about to share what `share` tells: that sequence comes last, and is only cut to it.
        """
        source = None if share is None else share.sequence
        while self.tree.span - self.tree.pinned_span > most:
            oldest = self._oldest(source)
            if oldest is not None:
                changes.append(self.drop(oldest))
            else:
                assert share is not None, "without one that is spared, something is left to give up"
                changes.append(self._cut(share.sequence, share.length))
        if source in self._kept:
            self._note_use(source)

    def drop(self, sequence: SequenceId) -> Evicted:
        """Give up all that a sequence keeps."""
        evicted = self._cut(sequence, 0)
        self.forget(sequence)
        return evicted

    def forget(self, sequence: SequenceId) -> None:
        """Note that what a sequence kept is gone."""
        self._forget(sequence)
        self.tree.remove(sequence)
        self._note_empty(sequence)

    def _oldest(self, but: SequenceId | None) -> SequenceId | None:
        oldest = min(self._kept, key=self._kept.__getitem__, default=None)
        if oldest is None or oldest != but:
            return oldest
        return min((one for one in self._kept if one != but), key=self._kept.__getitem__, default=None)

    def _note_use(self, sequence: SequenceId) -> None:
        self._clock += 1
        self._kept[sequence] = self._clock
        self._movable.pop(sequence, None)
        if sequence < self.plan.sequences:
            self._movable[sequence] = None

    def _forget(self, sequence: SequenceId) -> None:
        del self._kept[sequence]
        self._movable.pop(sequence, None)

    def _move(self, sequence: SequenceId, to: SequenceId, changes: list[CellChange]) -> None:
        """Let an empty sequence hold what another one keeps; it is as old."""
        self.tree.rename(sequence, to)
        self._kept[to] = self._kept[sequence]
        if to < self.plan.sequences:
            self._movable[to] = None
        self._forget(sequence)
        self._note_empty(sequence)
        changes.append(Moved(sequence, to))

    def _cut(self, sequence: SequenceId, length: int) -> Evicted:
        """Give up what a sequence keeps beyond its first tokens."""
        evicted = Evicted(sequence, self.tree.scope(sequence), self.tree.tokens(sequence), length)
        self.tree.shorten(sequence, length)
        self.evictions += 1
        return evicted

    def _note_empty(self, sequence: SequenceId) -> None:
        (self._empty if sequence < self.plan.sequences else self._spare).append(sequence)


def keepers(plan: RegionPlan) -> range:
    """Return the ids of the sequences that can only keep cells. The one before them is the context's own."""
    return range(plan.sequences + 1, plan.sequences + 1 + plan.keepers)

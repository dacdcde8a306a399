"""The books of a KV region where sequences that begin alike share the cells of what they have in common.

So it is in llama.cpp's unified cache. Every sequence that holds cells has its path in a prefix tree, so each cell is
counted once, however many sequences share it. A request that is given a place enters the tree with its prompt before
that is computed, so that others which come meanwhile wait for it rather than compute the same, unless that is hardly
anything, or it has been told to stop. What it generates is its own until it ends, and becomes part of the tree then.

The sequences that can run are few. Those that only keep what finished requests have left may have ids beyond these,
where they can be copied from and cost nothing but their cells.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache.changes import CellChange, Merged, Moved, RegionStatistics, Source, TakenPlace
from llamalane.kvcache.holdings import CellUse, Holding, holdings_of
from llamalane.kvcache.planned_region import PlannedRegion
from llamalane.kvcache.prefix_tree import Match, PrefixTree
from llamalane.kvcache.unused_sequences import UnusedSequences, keepers

WORTHWHILE = 16
"""Fewer tokens are not worth waiting for until somebody else has computed them, nor merging if two hold them."""


@dataclass(slots=True)
class _Taken:
    """A sequence that runs or is paused: the cells that it was promised, its path in the tree included."""

    cells: int
    scope: str
    paused: bool = False


@dataclass(slots=True)
class SharedRegion(PlannedRegion):
    """The sequences of one lane and their cells.

    What is kept for nobody in particular takes at most `most_kept` cells (None: all that are not promised). What
    somebody holds who has computed all of it is always shared; `worthwhile` is how many tokens more must be on their
    way to be waited for, or held twice to be merged. A prompt is on its way as a whole until it is computed, even where
    it began with cells that were there.
    """

    most_kept: int | None = None
    worthwhile: int = WORTHWHILE
    _tree: PrefixTree[SequenceId] = field(init=False)
    _unused: UnusedSequences = field(init=False)
    _taken: dict[SequenceId, _Taken] = field(init=False, default_factory=dict)
    _private: int = field(init=False, default=0)
    """Cells promised to those that are taken, beyond their paths in the tree."""

    def __post_init__(self) -> None:
        self._start(evictions=0)

    def _start(self, evictions: int) -> None:
        self._tree = PrefixTree()
        self._unused = UnusedSequences(self.plan, self._tree, evictions)

    @property
    def partitioned(self) -> bool:
        """Whether each sequence has a part of the cells for itself: never."""
        return False

    @property
    def can_roll_back(self) -> bool:
        """Whether the end of a sequence can be dropped: models that share cells can do that."""
        return True

    @property
    def shares(self) -> bool:
        """Whether sequences share cells: always."""
        return True

    @property
    def free(self) -> int:
        """How many sequences can be taken."""
        return self.plan.sequences - len(self._taken)

    @property
    def room(self) -> int:
        """How many cells can be promised, giving up kept ones."""
        return self.plan.cells - self._promised

    def cached(self, tokens: Sequence[int], scope: str) -> int:
        """Return how many of the first `tokens` need not be computed if they get a place here. Changes nothing."""
        return self._find(scope, tokens[: len(tokens) - 1]).length

    def need(self, tokens: Sequence[int], cells: int, scope: str) -> int:
        """Return by how much `room` shrinks when `tokens` get a place with `cells` cells.

        What a sequence that runs or is paused holds of them is there already.
        """
        return cells - self._find(scope, tokens[: len(tokens) - 1]).pinned

    def own(self, sequence: SequenceId) -> int:
        """Return by how much `room` grows when a sequence that is taken is given back."""
        return self.owned([sequence])

    def owned(self, sequences: Collection[SequenceId]) -> int:
        """Return by how much `room` grows when several that are taken are given back together."""
        private = sum(self._get(sequence).cells - self._tree.length(sequence) for sequence in sequences)
        return private + self._tree.pinned_by(sequences)

    def take(self, tokens: Sequence[int], cells: int, scope: str, *, restored: bool = False) -> TakenPlace:
        """Take a sequence for `tokens`, which shares the cells of all that is held of them.

        Promises `cells`, shared ones included: from 1 to `limit`, and enough for `tokens`. The last of `tokens` is
        never counted as held: its logits are needed. `restored` tells that the cells come from host memory: it gets
        cells of its own. Raises `PoolExhaustedError` when no sequence is free, or too few cells can be promised.
        """
        if not max(1, len(tokens)) <= cells <= self.limit:
            raise PoolError(f"a place has from {max(1, len(tokens))} to {self.limit} cells; got {cells}")
        if not self.free:
            raise PoolExhaustedError("no sequence is free on this lane")
        path = () if restored else tokens[: len(tokens) - 1]
        match = self._find(scope, path)
        if cells - match.pinned > self.room:
            need = cells - match.pinned
            raise PoolExhaustedError(f"{need} KV cells are wanted, and {self.room} can be promised on this lane")
        changes: list[CellChange] = []
        source, share, cached = match.holder, None, 0
        if source is not None and self._unused.can_continue(source, match.length):
            sequence, cached = self._unused.take_kept(source, match.length, changes), match.length
            self._tree.pin(sequence)
            self._tree.extend(sequence, path[match.length :], apart=True)
            self._tree.note_filled(sequence, len(path) == match.length)
        else:
            sequence = self._unused.take_empty(source, changes)
            share = None if source is None else Source(_moved(source, changes), match.length)
            beside = None if share is None else (share.sequence, share.length)
            self._tree.insert(sequence, scope, path, beside=beside, apart=True, pinned=True, filled=False)
        self._taken[sequence] = _Taken(cells, scope)
        self._private += cells - len(path)
        self._shrink(share, changes)
        return TakenPlace(sequence, cells, cached, share, tuple(changes))

    def grow(self, sequence: SequenceId, cells: int) -> tuple[CellChange, ...] | None:
        """Promise `cells` in all to a running sequence, `limit` at most.

        Returns what has to be done for it, None when there are too few cells: nothing changes.
        """
        taken = self._get_running(sequence)
        if not taken.cells <= cells <= self.limit:
            raise PoolError(f"sequence {sequence} has {taken.cells} cells and can get {self.limit}; got {cells}")
        return self._promise(taken, cells)

    def note_computed(self, sequence: SequenceId) -> None:
        """Note that a running sequence has computed its prompt: what others have in common with it is there."""
        self._get_running(sequence)
        self._note_filled(sequence)

    def note_stopped(self, sequence: SequenceId) -> None:
        """Note that a sequence was told to stop: nobody can count any more on what it has yet to compute."""
        self._get(sequence)
        self._tree.note_stopped(sequence, not self._tree.filled(sequence))

    def pause(self, sequence: SequenceId) -> None:
        """Note that a running sequence is taken off; what was promised stays so until `settle` tells what it fills."""
        self._get_running(sequence).paused = True
        self.note_stopped(sequence)

    def settle(self, sequence: SequenceId, cells: int) -> None:
        """Note that a paused sequence fills only `cells`."""
        taken = self._get_paused(sequence)
        if not 0 <= cells <= taken.cells:
            raise PoolError(f"sequence {sequence} cannot fill {cells} cells where {taken.cells} were promised")
        before = taken.cells - self._tree.length(sequence)
        if cells < self._tree.length(sequence):  # the prompt was not computed to its end
            self._tree.shorten(sequence, cells)
        self._private += cells - self._tree.length(sequence) - before
        self._note_filled(sequence)
        taken.cells = cells

    def resume(self, sequence: SequenceId, cells: int) -> tuple[CellChange, ...] | None:
        """Let a paused sequence run again with `cells` promised; returns what `grow` returns."""
        taken = self._get_paused(sequence)
        if not taken.cells <= cells <= self.limit:
            raise PoolError(f"sequence {sequence} fills {taken.cells} cells and can get {self.limit}; got {cells}")
        changes = self._promise(taken, cells)
        taken.paused = changes is None
        return changes

    def give_back(self, sequence: SequenceId, kept: Sequence[int] = ()) -> tuple[CellChange, ...]:
        """Free a sequence that ran or was paused; its cells hold `kept` from now on, until they are wanted.

        Returns what has to be done after it: it may hold what others hold as well, in cells of its own.
        """
        taken = self._get(sequence)
        if len(kept) > taken.cells:
            raise PoolError(f"{len(kept)} cells cannot be kept where {taken.cells} were promised")
        del self._taken[sequence]
        length = self._tree.length(sequence)
        self._private -= taken.cells - length
        self._tree.unpin(sequence)
        changes: list[CellChange] = []
        if len(kept) <= length:
            self._tree.shorten(sequence, len(kept))
        else:
            self._tree.extend(sequence, kept[length:], apart=True)
        self._merge(sequence, taken.scope, kept, changes)
        self._unused.add(sequence)
        self._shrink(None, changes)
        return tuple(changes)

    def note_copy_cost(self, tokens: int) -> None:
        """Take no note of what copying costs: cells are shared here, which is always cheaper than computing them."""

    def forget(self, sequence: SequenceId) -> tuple[CellChange, ...]:
        """Note that what a sequence keeps is gone; nothing happens when it is taken."""
        if sequence in self._unused.kept:
            self._unused.forget(sequence)
        return ()

    def forget_all(self) -> tuple[CellChange, ...]:
        """Give up all that is kept."""
        return tuple(map(self._unused.drop, self._unused.oldest_first()))

    def wipe(self) -> None:
        """Note that the cells are gone: the lane has a new context. Nothing may be taken."""
        if self._taken:
            raise PoolError(f"sequence {min(self._taken)} is still taken")
        self._start(self._unused.evictions)

    def statistics(self) -> RegionStatistics:
        """Return the region's numbers."""
        paused = self.owned([sequence for sequence, taken in self._taken.items() if taken.paused])
        return RegionStatistics(
            self.plan.cells,
            reserved=self._promised - paused,
            paused=paused,
            kept=self._kept,
            sequences=self.plan.sequences,
            free=self.free,
            evictions=self._unused.evictions,
        )

    def holdings(self) -> tuple[Holding, ...]:
        """Tell whose the cells are that are not free; as many in all as `statistics` tells for each use."""
        totals = self.statistics()
        running = {sequence: self.own(sequence) for sequence, taken in self._taken.items() if not taken.paused}
        paused = {sequence: self.own(sequence) for sequence, taken in self._taken.items() if taken.paused}
        kept = {sequence: self._tree.exclusive(sequence) for sequence in self._unused.kept}
        return (
            *holdings_of(CellUse.RUNNING, running, totals.reserved),
            *holdings_of(CellUse.PAUSED, paused, totals.paused),
            *holdings_of(CellUse.KEPT, kept, totals.kept),
        )

    def check(self) -> None:
        """Raise `PoolError` unless the books add up."""
        self._tree.check()
        ids = sorted([*self._taken, *self._unused.all])
        private = sum(taken.cells - self._tree.length(sequence) for sequence, taken in self._taken.items())
        if ids != [*range(self.plan.sequences), *keepers(self.plan)] or private != self._private:
            raise PoolError(f"the books do not add up: {private} cells of {self._private}, sequences {ids}")
        pinned = {sequence for sequence in self._tree.holders if self._tree.pinned(sequence)}
        if self._tree.holders != self._taken.keys() | self._unused.kept or pinned != self._taken.keys():
            raise PoolError("a sequence holds cells that nobody knows of")
        if self._promised + self._kept > self.plan.cells:
            raise PoolError(f"more cells are promised than there are: {self.statistics()}")

    def _note_filled(self, sequence: SequenceId) -> None:
        self._tree.note_filled(sequence, True)
        self._tree.note_stopped(sequence, False)

    @property
    def _promised(self) -> int:
        return self._tree.pinned_span + self._private

    @property
    def _kept(self) -> int:
        """How many cells are kept for nobody in particular."""
        return self._tree.span - self._tree.pinned_span

    def _get(self, sequence: SequenceId) -> _Taken:
        if sequence not in self._taken:
            raise PoolError(f"sequence {sequence} is not taken")
        return self._taken[sequence]

    def _get_running(self, sequence: SequenceId) -> _Taken:
        if sequence not in self._taken or self._taken[sequence].paused:
            raise PoolError(f"sequence {sequence} is not running")
        return self._taken[sequence]

    def _get_paused(self, sequence: SequenceId) -> _Taken:
        if sequence not in self._taken or not self._taken[sequence].paused:
            raise PoolError(f"sequence {sequence} is not paused")
        return self._taken[sequence]

    def _promise(self, taken: _Taken, cells: int) -> tuple[CellChange, ...] | None:
        if cells - taken.cells > self.room:
            return None
        self._private += cells - taken.cells
        taken.cells = cells
        changes: list[CellChange] = []
        self._shrink(None, changes)
        return tuple(changes)

    def _find(self, scope: str, path: Sequence[int]) -> Match[SequenceId]:
        """Return whose cells a prompt should share: those that are filled, or some that will be, if they are many."""
        coming = self._tree.match(scope, path)
        if coming.holder is None or self._tree.filled(coming.holder):
            return coming
        filled = self._tree.match(scope, path, filled=True)
        return coming if coming.length >= filled.length + self.worthwhile else filled

    def _merge(self, sequence: SequenceId, scope: str, kept: Sequence[int], changes: list[CellChange]) -> None:
        """Let a sequence that is used no longer share what another holds as well, in cells of its own until now.

        Nothing comes free where others hold its own cells too, and what they share cannot be told from its new ones.
        """
        self._tree.note_filled(sequence, False)  # so that others are found
        match = self._tree.match(scope, kept, filled=True)
        held_by_others = len(kept) - self._tree.exclusive(sequence)
        if match.holder is not None and match.length - held_by_others >= self.worthwhile:
            changes.append(Merged(sequence, match.holder, self._tree.common(sequence, match.holder), match.length))
            self._tree.remove(sequence)
            beside = (match.holder, match.length)
            self._tree.insert(sequence, scope, kept, beside=beside, apart=True, filled=False)
        self._note_filled(sequence)

    def _shrink(self, share: Source | None, changes: list[CellChange]) -> None:
        """Give up kept cells until all that is promised fits, and the rest within its bound; `share` last."""
        most = self.plan.cells if self.most_kept is None else self.most_kept
        self._unused.shrink(min(most, self.plan.cells - self._promised), share, changes)


def _moved(source: SequenceId, changes: Sequence[CellChange]) -> SequenceId:
    """Return which sequence holds by now what `source` held."""
    for change in changes:
        if isinstance(change, Moved) and change.sequence == source:
            source = change.to
    return source

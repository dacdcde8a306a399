"""The books of a KV region where each sequence has cells of its own: which holds how many, and for whom.

So it is in the partitioned layout, and with models whose sequences cannot share cells. A sequence runs, or is paused,
or keeps what a finished request has left, so that a request which continues it computes only what is new. What runs has
cells reserved, and what is paused or kept has those that it fills. So ``Σ reserved + Σ paused + Σ kept ≤ cells`` at all
times, and nothing can run out: when cells are wanted, kept ones are given up first, those that were left longest ago
before others.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache.budget import Layout
from llamalane.kvcache.changes import CellChange, Evicted, RegionStatistics, Source, TakenPlace
from llamalane.kvcache.holdings import CellUse, Holding, holdings_of
from llamalane.kvcache.planned_region import PlannedRegion
from llamalane.kvcache.runs import common_prefix

CHEAPEST_COPY = 16
"""Fewer tokens are never worth a copy: it overwrites what a place keeps."""
LEAST_COPY = 64
"""Fewer tokens are not worth a copy, until the cost of one was measured."""


class _Use(enum.Enum):
    FREE = "free"
    RUNNING = "running"
    PAUSED = "paused"


_SHOWN = {_Use.FREE: CellUse.KEPT, _Use.RUNNING: CellUse.RUNNING, _Use.PAUSED: CellUse.PAUSED}


@dataclass(slots=True)
class _Holder:
    """One sequence; `cells` are reserved while it runs, and filled while it is paused.

    `tokens` are what it keeps, or, while it is taken, the prompt without its last token: what others can copy of it.
    """

    sequence: SequenceId
    use: _Use = _Use.FREE
    cells: int = 0
    tokens: Sequence[int] = ()
    scope: str = ""
    freed: int = 0
    """When it came free, as a count: the smallest was free longest."""

    @property
    def kept(self) -> Sequence[int]:
        """What it holds for nobody in particular."""
        return self.tokens if self.use is _Use.FREE else ()


@dataclass(slots=True)
class Region(PlannedRegion):
    """The sequences of one lane and their cells.

    `can_roll_back` tells whether the model can drop the end of a sequence; if not, only a request that continues a
    kept sequence exactly can use it. Where it can, and sequences have parts of their own, a prompt's beginning is
    copied from another sequence if that gives at least `least_copy` tokens more than a place keeps by itself.

    Of sequences with parts of their own, llama.cpp computes those in one pass that follow one another. If `compact`,
    places beside such as run are taken before others, whatever they keep: there should be host memory for that.
    """

    can_roll_back: bool = True
    least_copy: int = LEAST_COPY
    compact: bool = True
    _holders: list[_Holder] = field(init=False)
    _used: int = field(init=False, default=0)
    _counter: int = field(init=False, default=0)
    _evictions: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._holders = [_Holder(SequenceId(i)) for i in range(self.plan.sequences)]

    @property
    def partitioned(self) -> bool:
        """Whether each sequence has a part of the cells for itself."""
        return self.plan.layout is Layout.PARTITIONED

    @property
    def shares(self) -> bool:
        """Whether sequences share cells: never."""
        return False

    @property
    def free(self) -> int:
        """How many sequences can be taken."""
        return sum(holder.use is _Use.FREE for holder in self._holders)

    @property
    def room(self) -> int:
        """How many cells can be reserved, giving up kept ones."""
        return self.plan.cells - self._used

    def cached(self, tokens: Sequence[int], scope: str) -> int:
        """Return how many of the first `tokens` need not be computed if they get a place here. Changes nothing."""
        own = max((self._continued(holder, tokens, scope) for holder in self._free()), default=0)
        share = self._source(tokens, scope, but=None)
        return share.length if share is not None and share.length >= own + self.least_copy else own

    def need(self, tokens: Sequence[int], cells: int, scope: str) -> int:
        """Return by how much `room` shrinks when `tokens` get a place with `cells` cells: by all of them."""
        return cells

    def own(self, sequence: SequenceId) -> int:
        """Return by how much `room` grows when a sequence that is taken is given back."""
        return self._taken(sequence).cells

    def owned(self, sequences: Collection[SequenceId]) -> int:
        """Return by how much `room` grows when several that are taken are given back together."""
        return sum(map(self.own, sequences))

    def take(self, tokens: Sequence[int], cells: int, scope: str, *, restored: bool = False) -> TakenPlace:
        """Take the sequence that `tokens` continue, else one that keeps nothing, or was free longest.

        Reserves `cells`, from 1 to `limit`. Only cells kept under the same `scope` are used. The last of `tokens` is
        never counted as held: its logits are needed. `restored` tells that the cells come from host memory: no others
        are wanted. After the changes the sequence holds as many tokens as are `cached`, none if there is a `share`.
        Raises `PoolExhaustedError` when no sequence is free, or too few cells can be reserved.
        """
        if not 1 <= cells <= self.limit:
            raise PoolError(f"a place reserves from 1 to {self.limit} cells; got {cells}")
        free = list(self._free())
        if not free:
            raise PoolExhaustedError("no sequence is free on this lane")
        if cells > self.room:
            raise PoolExhaustedError(f"{cells} KV cells are wanted, and {self.room} can be reserved on this lane")
        holder, cached, share = self._choose(free, () if restored else tokens, cells, scope)
        changes = [self._evicted(holder, cached)] if len(holder.kept) > cached else []
        self._use(holder, _Use.RUNNING, cells)
        holder.tokens, holder.scope = tokens[: len(tokens) - 1], scope
        return TakenPlace(holder.sequence, cells, cached, share, (*changes, *self._evict()))

    def grow(self, sequence: SequenceId, cells: int) -> tuple[CellChange, ...] | None:
        """Reserve `cells` in all for a running sequence, `limit` at most.

        Returns what has to be done for it, None when there are too few cells: nothing changes.
        """
        holder = self._holder(sequence, _Use.RUNNING)
        if not holder.cells <= cells <= self.limit:
            raise PoolError(f"sequence {sequence} has {holder.cells} cells and can get {self.limit}; got {cells}")
        if cells - holder.cells > self.room:
            return None
        self._use(holder, _Use.RUNNING, cells)
        return tuple(self._evict())

    def note_computed(self, sequence: SequenceId) -> None:
        """Note that a running sequence has computed its prompt; nothing depends on it here."""
        self._holder(sequence, _Use.RUNNING)

    def note_stopped(self, sequence: SequenceId) -> None:
        """Note that a sequence was told to stop; a copy of it is of what it has computed in any case."""
        self._taken(sequence)

    def pause(self, sequence: SequenceId) -> None:
        """Note that a running sequence is taken off; what was reserved stays so until `settle` tells what it fills."""
        holder = self._holder(sequence, _Use.RUNNING)
        self._use(holder, _Use.PAUSED, holder.cells)

    def settle(self, sequence: SequenceId, cells: int) -> None:
        """Note that a paused sequence fills only `cells`."""
        holder = self._holder(sequence, _Use.PAUSED)
        if not 0 <= cells <= holder.cells:
            raise PoolError(f"sequence {sequence} cannot fill {cells} cells where {holder.cells} were reserved")
        self._use(holder, _Use.PAUSED, cells)
        holder.tokens = holder.tokens[:cells]

    def resume(self, sequence: SequenceId, cells: int) -> tuple[CellChange, ...] | None:
        """Let a paused sequence run again with `cells` reserved; returns what `grow` returns."""
        holder = self._holder(sequence, _Use.PAUSED)
        if not holder.cells <= cells <= self.limit:
            raise PoolError(f"sequence {sequence} fills {holder.cells} cells and can get {self.limit}; got {cells}")
        if cells - holder.cells > self.room:
            return None
        self._use(holder, _Use.RUNNING, cells)
        return tuple(self._evict())

    def give_back(self, sequence: SequenceId, kept: Sequence[int] = ()) -> tuple[CellChange, ...]:
        """Free a sequence that ran or was paused; its cells hold `kept` from now on, until it is taken again.

        Returns what has to be done after it: nothing.
        """
        holder = self._taken(sequence)
        if len(kept) > holder.cells:
            raise PoolError(f"{len(kept)} cells cannot be kept where {holder.cells} were reserved")
        self._counter += 1
        self._use(holder, _Use.FREE, 0)
        holder.tokens, holder.freed = kept, self._counter
        return ()

    def note_copy_cost(self, tokens: int) -> None:
        """Note that copying from another sequence takes as long as computing so many tokens."""
        self.least_copy = max(CHEAPEST_COPY, tokens)

    def forget(self, sequence: SequenceId) -> tuple[CellChange, ...]:
        """Note that what a sequence keeps is gone; nothing happens when it is taken."""
        if self._holders[sequence].use is _Use.FREE:
            self._holders[sequence].tokens = ()
        return ()

    def forget_all(self) -> tuple[CellChange, ...]:
        """Give up all that is kept."""
        evicted = [self._evicted(holder, 0) for holder in self._free() if holder.kept]
        for change in evicted:
            self.forget(change.sequence)
        return tuple(evicted)

    def wipe(self) -> None:
        """Note that the cells are gone: the lane has a new context. Nothing may be taken."""
        for holder in self._holders:
            if holder.use is not _Use.FREE:
                raise PoolError(f"sequence {holder.sequence} is still taken")
        for holder in self._holders:
            holder.tokens, holder.scope = (), ""

    def statistics(self) -> RegionStatistics:
        """Return the region's numbers."""
        return RegionStatistics(
            self.plan.cells,
            reserved=sum(holder.cells for holder in self._holders if holder.use is _Use.RUNNING),
            paused=sum(holder.cells for holder in self._holders if holder.use is _Use.PAUSED),
            kept=self._kept(),
            sequences=len(self._holders),
            free=self.free,
            evictions=self._evictions,
        )

    def holdings(self) -> tuple[Holding, ...]:
        """Tell whose the cells are that are not free; as many in all as `statistics` tells for each use."""
        own: dict[CellUse, dict[SequenceId, int]] = {use: {} for use in CellUse}
        for holder in self._holders:
            own[_SHOWN[holder.use]][holder.sequence] = holder.cells + len(holder.kept)
        return tuple(one for use, cells in own.items() for one in holdings_of(use, cells, sum(cells.values())))

    def check(self) -> None:
        """Raise `PoolError` unless the books add up."""
        for holder in self._holders:
            if holder.cells + len(holder.kept) > self.limit or (holder.cells and holder.use is _Use.FREE):
                raise PoolError(f"the books of {holder} do not add up")
        statistics = self.statistics()
        used = statistics.reserved + statistics.paused
        if used != self._used or used + statistics.kept > self.plan.cells:
            raise PoolError(f"more cells are promised than there are: {statistics}")

    def _free(self) -> Iterable[_Holder]:
        return (holder for holder in self._holders if holder.use is _Use.FREE)

    def _holder(self, sequence: SequenceId, use: _Use) -> _Holder:
        if not 0 <= sequence < len(self._holders) or self._holders[sequence].use is not use:
            raise PoolError(f"sequence {sequence} is not {use.value}")
        return self._holders[sequence]

    def _taken(self, sequence: SequenceId) -> _Holder:
        if not 0 <= sequence < len(self._holders) or self._holders[sequence].use is _Use.FREE:
            raise PoolError(f"sequence {sequence} is not taken")
        return self._holders[sequence]

    def _use(self, holder: _Holder, use: _Use, cells: int) -> None:
        self._used += cells - holder.cells
        holder.use, holder.cells = use, cells

    def _kept(self) -> int:
        return sum(len(holder.kept) for holder in self._holders)

    def _evict(self) -> list[Evicted]:
        """Give up kept cells until all that is promised fits."""
        excess = self._used + self._kept() - self.plan.cells
        evicted = []
        for holder in sorted((holder for holder in self._free() if holder.kept), key=lambda holder: holder.freed):
            if excess <= 0:
                break
            excess -= len(holder.kept)
            evicted.append(self._evicted(holder, 0))
            holder.tokens = ()
        return evicted

    def _evicted(self, holder: _Holder, keep: int) -> Evicted:
        self._evictions += 1
        return Evicted(holder.sequence, holder.scope, holder.kept, keep)

    def _choose(
        self, free: Sequence[_Holder], tokens: Sequence[int], cells: int, scope: str
    ) -> tuple[_Holder, int, Source | None]:
        """Return which of the `free` sequences to take, how many of `tokens` it keeps, and where to copy more from."""
        holder = max(
            free, key=lambda place: (self._continued(place, tokens, scope), *self._merits(place, not place.kept))
        )
        cached = self._match(holder, tokens, scope)
        if cached > cells:  # what is reserved must hold them
            cached = cells if self.can_roll_back else 0
        share = self._source(tokens, scope, but=holder)
        if share is None or min(share.length, cells) < cached + self.least_copy:
            share = self._away_from(holder, cached, free)
        if share is None:
            return holder, cached, None
        # A copy replaces all that a place keeps: one is taken that loses nothing by it, or was free longest. No other's
        # cells are given up for it, not the source's either: each has a part of its own.
        places = [place for place in free if place.sequence != share.sequence]
        holder = max(
            places, key=lambda place: self._merits(place, len(place.kept) == self._match(place, tokens, scope))
        )
        return holder, 0, Source(share.sequence, min(share.length, cells))

    def _away_from(self, holder: _Holder, cached: int, free: Sequence[_Holder]) -> Source | None:
        """Return what is to be copied from a place that lies apart from all that run, to one that does not.

        None when it does not lie so, or it is not worth it.
        """
        if not (self.compact and self.partitioned and self.can_roll_back) or cached < self.least_copy:
            return None
        if self._neighbours(holder) or not any(map(self._neighbours, free)):
            return None
        return Source(holder.sequence, cached)

    def _merits(self, place: _Holder, loses_nothing: bool) -> tuple[bool, bool, int, int]:
        """Return what speaks for a place, the weightiest first."""
        neighbours = self._neighbours(place) if self.compact else 0
        return neighbours > 0, loses_nothing, neighbours, -place.freed

    def _neighbours(self, holder: _Holder) -> int:
        """Return how many of the sequences beside one run; where cells are not divided, it does not matter."""
        if not self.partitioned:
            return 0
        beside = self._holders[max(0, holder.sequence - 1) : holder.sequence + 2]
        return sum(one.use is _Use.RUNNING for one in beside)

    def _source(self, tokens: Sequence[int], scope: str, but: _Holder | None) -> Source | None:
        """Return the sequence that most of `tokens` can be copied from, of equals one that need not be waited for."""
        if not (self.partitioned and self.can_roll_back):
            return None
        others = [holder for holder in self._holders if holder is not but]
        matches = [(self._match(holder, tokens, scope), holder.use is _Use.FREE, holder.sequence) for holder in others]
        length, _, sequence = max(matches, default=(0, False, SequenceId(0)))
        return Source(sequence, length) if length else None

    def _continued(self, holder: _Holder, tokens: Sequence[int], scope: str) -> int:
        """Return what `tokens` share with a sequence, if that is most of the sequence.

        Conversations that only begin alike, with the same system prompt, must not take each other's places.
        """
        match = self._match(holder, tokens, scope)
        return match if 2 * match >= len(holder.kept) else 0

    def _match(self, holder: _Holder, tokens: Sequence[int], scope: str) -> int:
        if holder.scope != scope or not holder.tokens:
            return 0
        common = common_prefix(holder.tokens, tokens[: len(tokens) - 1])
        if common < len(holder.tokens) and not self.can_roll_back:
            return 0
        return common

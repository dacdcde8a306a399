"""The books of one lane's KV region: which sequence holds which cells, and for whom.

A sequence runs, or is paused, or keeps what a finished request has left, so that a request which continues it computes
only what is new. What runs has cells reserved, and what is paused or kept has those that it fills. So
``Σ reserved + Σ paused + Σ kept ≤ cells`` at all times, and nothing can run out: when cells are wanted, kept ones are
given up first, those that were left longest ago before others.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache.budget import Layout, RegionPlan


class _Use(enum.Enum):
    FREE = "free"
    RUNNING = "running"
    PAUSED = "paused"


@dataclass(slots=True)
class _Holder:
    """One sequence; `cells` are reserved while it runs, and filled while it is paused or keeps them."""

    sequence: SequenceId
    use: _Use = _Use.FREE
    cells: int = 0
    kept: Sequence[int] = ()
    scope: str = ""
    freed: int = 0
    """When it came free, as a count: the smallest was free longest."""


@dataclass(frozen=True, slots=True)
class TakenPlace:
    """A sequence to run on: the cells reserved, and how many of the prompt's tokens it holds already.

    `evicted` are other sequences, whose cells were given up for it and have to be removed before.
    """

    sequence: SequenceId
    cells: int
    cached: int
    evicted: tuple[SequenceId, ...] = ()


@dataclass(frozen=True, slots=True)
class RegionStatistics:
    """A region at one moment."""

    cells: int
    """All cells of the region."""
    reserved: int
    """Cells that running requests may use."""
    paused: int
    """Cells that paused requests hold."""
    kept: int
    """Cells that finished requests have left for those that continue them."""
    sequences: int
    """All sequences."""
    free: int
    """Sequences that can be taken."""


@dataclass(slots=True)
class Region:
    """The sequences of one lane and their cells.

    `can_roll_back` tells whether the model can drop the end of a sequence; if not, only a request that continues a
    kept sequence exactly can use it.
    """

    plan: RegionPlan
    can_roll_back: bool = True
    _holders: list[_Holder] = field(init=False)
    _used: int = field(init=False, default=0)
    _counter: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._holders = [_Holder(SequenceId(i)) for i in range(self.plan.sequences)]

    @property
    def places(self) -> int:
        """How many sequences can run at once."""
        return self.plan.places

    @property
    def limit(self) -> int:
        """The most cells that one sequence can hold."""
        return self.plan.limit

    @property
    def partitioned(self) -> bool:
        """Whether each sequence has a part of the cells for itself."""
        return self.plan.layout is Layout.PARTITIONED

    @property
    def cells(self) -> int:
        """All cells."""
        return self.plan.cells

    @property
    def free(self) -> int:
        """How many sequences can be taken."""
        return sum(holder.use is _Use.FREE for holder in self._holders)

    @property
    def room(self) -> int:
        """How many cells can be reserved, giving up kept ones."""
        return self.plan.cells - self._used

    def cached(self, tokens: Sequence[int], scope: str) -> int:
        """Return how many of the first `tokens` a free sequence keeps which they continue. Changes nothing."""
        return max((self._continued(holder, tokens, scope) for holder in self._free()), default=0)

    def keeper(self, tokens: Sequence[int], scope: str) -> tuple[SequenceId, int] | None:
        """Return the free sequence that shares most of `tokens`, and how many; None when none shares any."""
        if not self.can_roll_back:
            return None
        matches = [(self._match(holder, tokens, scope), holder.sequence) for holder in self._free()]
        length, sequence = max(matches, default=(0, SequenceId(0)))
        return (sequence, length) if length else None

    def take(self, tokens: Sequence[int], cells: int, scope: str) -> TakenPlace:
        """Take the sequence that `tokens` continue, else one that keeps nothing, or was free longest.

        Reserves `cells`, from 1 to `limit`. Only cells kept under the same `scope` are shared. The last of `tokens`
        is never counted as held: its logits are needed. Raises `PoolExhaustedError` when no sequence is free, or too
        few cells can be reserved.
        """
        if not 1 <= cells <= self.limit:
            raise PoolError(f"a place reserves from 1 to {self.limit} cells; got {cells}")
        free = list(self._free())
        if not free:
            raise PoolExhaustedError("no sequence is free on this lane")
        if cells > self.room:
            raise PoolExhaustedError(f"{cells} KV cells are wanted, and {self.room} can be reserved on this lane")
        holder = max(free, key=lambda holder: (self._continued(holder, tokens, scope), not holder.kept, -holder.freed))
        cached = self._match(holder, tokens, scope)
        if cached > cells:  # what is reserved must hold them
            cached = cells if self.can_roll_back else 0
        self._use(holder, _Use.RUNNING, cells)
        holder.kept, holder.scope = (), scope
        return TakenPlace(holder.sequence, cells, cached, self._evict())

    def grow(self, sequence: SequenceId, cells: int) -> tuple[SequenceId, ...] | None:
        """Reserve `cells` in all for a running sequence, `limit` at most.

        Returns the sequences whose cells were given up for it, None when there are too few cells: nothing changes.
        """
        holder = self._holder(sequence, _Use.RUNNING)
        if not holder.cells <= cells <= self.limit:
            raise PoolError(f"sequence {sequence} has {holder.cells} cells and can get {self.limit}; got {cells}")
        if cells - holder.cells > self.room:
            return None
        self._use(holder, _Use.RUNNING, cells)
        return self._evict()

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

    def resume(self, sequence: SequenceId, cells: int) -> tuple[SequenceId, ...] | None:
        """Let a paused sequence run again with `cells` reserved; returns what `grow` returns."""
        holder = self._holder(sequence, _Use.PAUSED)
        if not holder.cells <= cells <= self.limit:
            raise PoolError(f"sequence {sequence} fills {holder.cells} cells and can get {self.limit}; got {cells}")
        if cells - holder.cells > self.room:
            return None
        self._use(holder, _Use.RUNNING, cells)
        return self._evict()

    def give_back(self, sequence: SequenceId, kept: Sequence[int] = ()) -> None:
        """Free a sequence that ran or was paused; its cells hold `kept` from now on, until it is taken again."""
        holder = self._holders[sequence] if 0 <= sequence < len(self._holders) else None
        if holder is None or holder.use is _Use.FREE:
            raise PoolError(f"sequence {sequence} is not taken")
        if len(kept) > holder.cells:
            raise PoolError(f"{len(kept)} cells cannot be kept where {holder.cells} were reserved")
        self._counter += 1
        self._use(holder, _Use.FREE, 0)
        holder.kept, holder.freed = kept, self._counter

    def wipe(self) -> None:
        """Note that the cells are gone: the lane has a new context. Nothing may be taken."""
        for holder in self._holders:
            if holder.use is not _Use.FREE:
                raise PoolError(f"sequence {holder.sequence} is still taken")
        for holder in self._holders:
            holder.kept, holder.scope = (), ""

    def statistics(self) -> RegionStatistics:
        """Return the region's numbers."""
        return RegionStatistics(
            self.plan.cells,
            reserved=sum(holder.cells for holder in self._holders if holder.use is _Use.RUNNING),
            paused=sum(holder.cells for holder in self._holders if holder.use is _Use.PAUSED),
            kept=self._kept(),
            sequences=len(self._holders),
            free=self.free,
        )

    def check(self) -> None:
        """Raise `PoolError` unless the books add up."""
        for holder in self._holders:
            if holder.cells + len(holder.kept) > self.limit or (holder.kept and holder.use is not _Use.FREE):
                raise PoolError(f"the books of {holder} do not add up")
        statistics = self.statistics()
        used = statistics.reserved + statistics.paused
        if used != self._used or used + statistics.kept > self.plan.cells:
            raise PoolError(f"more cells are promised than there are: {statistics}")

    def _free(self) -> Iterable[_Holder]:
        return (holder for holder in self._holders if holder.use is _Use.FREE)

    def _holder(self, sequence: SequenceId, use: _Use) -> _Holder:
        holder = self._holders[sequence] if 0 <= sequence < len(self._holders) else None
        if holder is None or holder.use is not use:
            raise PoolError(f"sequence {sequence} is not {use.value}")
        return holder

    def _use(self, holder: _Holder, use: _Use, cells: int) -> None:
        self._used += cells - holder.cells
        holder.use, holder.cells = use, cells

    def _kept(self) -> int:
        return sum(len(holder.kept) for holder in self._holders)

    def _evict(self) -> tuple[SequenceId, ...]:
        """Give up kept cells until all that is promised fits, and return whose they were."""
        excess = self._used + self._kept() - self.plan.cells
        evicted = []
        for holder in sorted((holder for holder in self._free() if holder.kept), key=lambda holder: holder.freed):
            if excess <= 0:
                break
            excess -= len(holder.kept)
            holder.kept = ()
            evicted.append(holder.sequence)
        return tuple(evicted)

    def _continued(self, holder: _Holder, tokens: Sequence[int], scope: str) -> int:
        """Return what `tokens` share with a sequence, if that is most of the sequence.

        Conversations that only begin alike, with the same system prompt, must not take each other's places.
        """
        match = self._match(holder, tokens, scope)
        return match if 2 * match >= len(holder.kept) else 0

    def _match(self, holder: _Holder, tokens: Sequence[int], scope: str) -> int:
        if holder.scope != scope or not holder.kept:
            return 0
        common = common_prefix(holder.kept, tokens[: len(tokens) - 1])
        if common < len(holder.kept) and not self.can_roll_back:
            return 0
        return common


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many first elements two sequences share. Compares slices, which is quick for lists."""
    if type(left) is not type(right):  # a list never equals a tuple
        left, right = list(left), list(right)
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low

"""The books of one lane's KV region: which place holds which tokens, and for whom.

A place has a fixed part of the region, `limit` cells. A taken place reserves what its request may need; a free one
keeps the cells of the sequence that ended on it until it is given away, so that a request which continues that
sequence computes only what is new. So ``Σ reserved + Σ kept ≤ places × limit ≤ cells`` at all times, and nothing can
run out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache.budget import RegionPlan


@dataclass(slots=True)
class _Place:
    sequence: SequenceId
    taken: bool = False
    reserved: int = 0
    kept: Sequence[int] = ()
    scope: str = ""
    freed: int = 0
    """When the place came free, as a count: the smallest was free longest."""


@dataclass(frozen=True, slots=True)
class TakenPlace:
    """A place given away: its sequence id, the cells reserved, and how many of the prompt's tokens it holds already."""

    sequence: SequenceId
    cells: int
    cached: int


@dataclass(frozen=True, slots=True)
class RegionStatistics:
    """A region at one moment."""

    cells: int
    """All cells of the region."""
    reserved: int
    """Cells that running requests may use."""
    kept: int
    """Cells that free places keep for a request that continues them."""
    places: int
    """All places."""
    free: int
    """Places that can be taken."""


@dataclass(slots=True)
class Region:
    """The places of one lane and their cells.

    `can_roll_back` tells whether the model can drop the end of a sequence; if not, only a request that continues a
    kept sequence exactly can use it.
    """

    plan: RegionPlan
    can_roll_back: bool = True
    _places: list[_Place] = field(init=False)
    _counter: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._places = [_Place(SequenceId(i)) for i in range(self.plan.places)]

    @property
    def places(self) -> int:
        """How many places there are."""
        return self.plan.places

    @property
    def limit(self) -> int:
        """The most cells that one place can reserve."""
        return self.plan.limit

    @property
    def free(self) -> int:
        """How many places can be taken."""
        return sum(not place.taken for place in self._places)

    def cached(self, tokens: Sequence[int], scope: str) -> int:
        """Return how many of the first `tokens` a free place holds whose sequence they continue. Changes nothing."""
        return max((self._continued(place, tokens, scope) for place in self._places if not place.taken), default=0)

    def take(self, tokens: Sequence[int], cells: int, scope: str) -> TakenPlace:
        """Take the free place whose sequence `tokens` continue, else one that keeps nothing, or was free longest.

        Reserves `cells`, from 1 to `limit`. Only cells kept under the same `scope` are shared. The last of `tokens`
        is never counted as held: its logits are needed. Raises `PoolExhaustedError` when no place is free.
        """
        if not 1 <= cells <= self.limit:
            raise PoolError(f"a place reserves from 1 to {self.limit} cells; got {cells}")
        free = [place for place in self._places if not place.taken]
        if not free:
            raise PoolExhaustedError("no place is free on this lane")
        place = max(free, key=lambda place: (self._continued(place, tokens, scope), not place.kept, -place.freed))
        cached = self._match(place, tokens, scope)
        place.taken, place.reserved, place.kept, place.scope = True, cells, (), scope
        return TakenPlace(place.sequence, cells, cached)

    def give_back(self, sequence: SequenceId, kept: Sequence[int] = ()) -> None:
        """Free a taken place; its cells hold `kept` from now on, until it is taken again."""
        place = self._places[sequence] if 0 <= sequence < self.places else None
        if place is None or not place.taken:
            raise PoolError(f"sequence {sequence} is not taken")
        if len(kept) > place.reserved:
            raise PoolError(f"{len(kept)} cells cannot be kept where {place.reserved} were reserved")
        self._counter += 1
        place.taken, place.reserved, place.kept, place.freed = False, 0, kept, self._counter

    def wipe(self) -> None:
        """Note that the cells are gone: the lane has a new context. Nothing may be taken."""
        for place in self._places:
            if place.taken:
                raise PoolError(f"sequence {place.sequence} is still taken")
        for place in self._places:
            place.kept, place.scope = (), ""

    def statistics(self) -> RegionStatistics:
        """Return the region's numbers."""
        return RegionStatistics(
            self.plan.cells,
            sum(place.reserved for place in self._places),
            sum(len(place.kept) for place in self._places),
            self.places,
            self.free,
        )

    def check(self) -> None:
        """Raise `PoolError` unless the books add up."""
        for place in self._places:
            held = place.reserved + len(place.kept)
            if held > self.limit or (place.reserved and place.kept) or place.taken != (place.reserved > 0):
                raise PoolError(f"the books of {place} do not add up")
        statistics = self.statistics()
        if statistics.reserved + statistics.kept > self.plan.cells:
            raise PoolError(f"more cells are promised than there are: {statistics}")

    def _continued(self, place: _Place, tokens: Sequence[int], scope: str) -> int:
        """Return what `tokens` share with a place's sequence, if that is most of the sequence.

        Conversations that only begin alike, with the same system prompt, must not take each other's places.
        """
        match = self._match(place, tokens, scope)
        return match if 2 * match >= len(place.kept) else 0

    def _match(self, place: _Place, tokens: Sequence[int], scope: str) -> int:
        if place.scope != scope or not place.kept:
            return 0
        common = common_prefix(place.kept, tokens[: len(tokens) - 1])
        if common < len(place.kept) and not self.can_roll_back:
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

"""What the stream pool lends: a place on a lane, with its cells."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from llamalane.errors import LeaseReleasedError, PoolError
from llamalane.ids import SequenceId
from llamalane.streams.steps import LaneBackend
from llamalane.streams.stream import Stream

CellChanges = tuple[object, ...]
"""What a region asks of its lane, in its own terms, oldest first."""


class Place(Protocol):
    """One place of a region, taken."""

    @property
    def sequence(self) -> SequenceId:
        """The place's sequence id."""

    @property
    def cells(self) -> int:
        """How many KV cells are reserved."""

    @property
    def cached(self) -> int:
        """How many of the prompt's first tokens the cells hold already."""

    @property
    def share(self) -> Source | None:
        """Where more of them can be had from."""

    @property
    def changes(self) -> CellChanges:
        """What the region asks of the lane before."""


class Source(Protocol):
    """A sequence that holds the first tokens of a prompt, or will hold them."""

    @property
    def sequence(self) -> SequenceId:
        """Its id."""

    @property
    def length(self) -> int:
        """How many tokens."""


class KVRegion(Protocol):
    """What the pool asks of a lane's KV region; `llamalane.kvcache.Region` is one."""

    @property
    def places(self) -> int:
        """How many sequences can run at once."""

    @property
    def limit(self) -> int:
        """The most cells that one sequence can hold."""

    @property
    def partitioned(self) -> bool:
        """Whether each sequence has a part of the cells for itself."""

    @property
    def shares(self) -> bool:
        """Whether sequences that begin alike share cells."""

    @property
    def sequences(self) -> int:
        """How many sequences can run or be paused."""

    @property
    def saves_in_parts(self) -> bool:
        """Whether a sequence is saved in parts, so that others can be computed in between."""

    @property
    def form(self) -> str:
        """What saved cells look like: regions of one form can hold what another one held."""

    @property
    def cells(self) -> int:
        """All cells."""

    @property
    def room(self) -> int:
        """How many cells can be reserved."""

    @property
    def can_roll_back(self) -> bool:
        """Whether the end of a sequence can be dropped, keeping its beginning."""

    @property
    def free(self) -> int:
        """How many sequences can be taken."""

    def cached(self, tokens: Sequence[int], scope: str) -> int:
        """Return how many of the first `tokens` need not be computed here."""

    def need(self, tokens: Sequence[int], cells: int, scope: str) -> int:
        """Return by how much `room` shrinks when `tokens` get a place with `cells` cells."""

    def own(self, sequence: SequenceId) -> int:
        """Return by how much `room` grows when a sequence that is taken is given back."""

    def owned(self, sequences: Collection[SequenceId]) -> int:
        """Return by how much `room` grows when several that are taken are given back together."""

    def take(self, tokens: Sequence[int], cells: int, scope: str, *, restored: bool = False) -> Place:
        """Take the best free sequence for `tokens`; if they come from host memory, one with cells of its own."""

    def grow(self, sequence: SequenceId, cells: int) -> CellChanges | None:
        """Reserve so many cells in all, and return what has to be done for it; None when there are too few."""

    def pause(self, sequence: SequenceId) -> None:
        """Take a sequence off that runs; it keeps its cells."""

    def settle(self, sequence: SequenceId, cells: int) -> None:
        """Note how many cells a paused sequence fills."""

    def note_computed(self, sequence: SequenceId) -> None:
        """Note that a running sequence has computed all of its prompt."""

    def note_stopped(self, sequence: SequenceId) -> None:
        """Note that a sequence was told to stop."""

    def resume(self, sequence: SequenceId, cells: int) -> CellChanges | None:
        """Let a paused sequence run again; returns what `grow` returns."""

    def give_back(self, sequence: SequenceId, kept: Sequence[int] = ()) -> CellChanges:
        """Free a sequence whose cells hold `kept` from now on; returns what has to be done after it."""

    def note_copy_cost(self, tokens: int) -> None:
        """Note that copying from another sequence takes as long as computing so many tokens."""

    def forget(self, sequence: SequenceId) -> CellChanges:
        """Note that what a sequence keeps is gone."""

    def forget_all(self) -> CellChanges:
        """Give up all that is kept."""

    def wipe(self) -> None:
        """Note that the cells are gone."""

    def statistics(self) -> Any:
        """Return the region's numbers."""

    def holdings(self) -> tuple[Any, ...]:
        """Tell whose the cells are."""

    def check(self) -> None:
        """Raise unless the books add up."""


@dataclass(slots=True, eq=False)
class PoolLane:
    """One entry of the pool: a stream, the lane that runs on it, and the lane's KV region."""

    stream: Stream
    backend: LaneBackend
    region: KVRegion
    serving: bool = True
    """False while the lane has no context: its places are withheld."""
    leased: int = 0
    """How many of its places are leased."""
    withheld: bool = False
    """Whether its free places are not lent: what runs there runs on, and nothing new comes."""

    @property
    def name(self) -> str:
        """The lane's name."""
        return self.stream.options.name

    @property
    def model(self) -> str:
        """The name of the model that embeds there; empty for the one that generates."""
        return self.stream.options.model

    @property
    def open(self) -> bool:
        """Whether its places are lent: it has a context, and they are not withheld."""
        return self.serving and not self.withheld

    @property
    def free(self) -> int:
        """How many of its places can be leased now."""
        return self.region.places - self.leased if self.open else 0


class Permits(Protocol):
    """Counts who runs: the pool."""

    def take_permit(self, lane: PoolLane) -> None:
        """Take one of a lane's permits."""

    def give_permit(self, lane: PoolLane) -> None:
        """Give it back."""


class Lease:
    """One place on one lane: a permit, a sequence id and KV cells, owned until `release`.

    Use it in a `with` block, or release it exactly once; forgetting it warns. A paused lease has given its permit back,
    and still owns its sequence and its cells.
    """

    def __init__(self, permits: Permits, lane: PoolLane, place: Place) -> None:
        self._permits = permits
        self._released = False
        self._paused = False
        self.lane = lane
        self.sequence = place.sequence
        self.cells = place.cells
        self.cached = place.cached
        self.share = place.share
        self.changes = place.changes

    @property
    def released(self) -> bool:
        """Whether the place was given back."""
        return self._released

    @property
    def paused(self) -> bool:
        """Whether the permit was given back, and the cells were not."""
        return self._paused

    def grow_nowait(self, cells: int) -> bool:
        """Get `cells` cells in all, if there are so many; `changes` tells what has to be done for it."""
        self._check_owned()
        changes = self.lane.region.grow(self.sequence, cells)
        if changes is None:
            return False
        self.cells, self.changes = cells, changes
        return True

    def note_computed(self) -> None:
        """Note that the whole prompt is in its cells, for others to share."""
        self._check_owned()
        self.lane.region.note_computed(self.sequence)

    def note_stopped(self) -> None:
        """Note that the lane was told to drop it: what it has yet to compute will never be in its cells."""
        self._check_owned()
        self.lane.region.note_stopped(self.sequence)

    def pause(self) -> None:
        """Give the permit back, for somebody else to run."""
        self._check_owned()
        self.lane.region.pause(self.sequence)
        self._permits.give_permit(self.lane)
        self._paused = True

    def settle(self, cells: int) -> None:
        """Give back what is reserved of a paused lease beyond the `cells` that it fills."""
        self._check_paused()
        self.lane.region.settle(self.sequence, cells)
        self.cells = self.cached = cells

    def resume_nowait(self, cells: int) -> bool:
        """Take a permit again, and `cells` cells in all; False when there is no place or too few cells."""
        self._check_paused()
        if not self.lane.free:
            return False
        changes = self.lane.region.resume(self.sequence, cells)
        if changes is None:
            return False
        self._permits.take_permit(self.lane)
        self._paused = False
        self.cells, self.changes, self.share = cells, changes, None
        return True

    def release(self, kept: Sequence[int] = ()) -> CellChanges:
        """Give the place back; its cells hold `kept`, for a request that continues it.

        Returns what has to be done after it.

        Raises `LeaseReleasedError` the second time.
        """
        if self._released:
            raise LeaseReleasedError(f"the lease of {self.lane.name}/{self.sequence} was released before")
        changes = self.lane.region.give_back(self.sequence, kept)
        if not self._paused:
            self._permits.give_permit(self.lane)
        self._released = True
        return changes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._released:
            self.release()

    def __del__(self) -> None:
        if not self._released:
            warnings.warn(f"{self!r} was never released", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<Lease of {self.lane.name}/{self.sequence}, {self.cells} cells>"

    def _check_owned(self) -> None:
        if self._released or self._paused:
            raise PoolError(f"{self!r} was given back or is paused")

    def _check_paused(self) -> None:
        if self._released or not self._paused:
            raise PoolError(f"{self!r} was given back or is not paused")

"""What the stream pool lends: a place on a lane, with its cells."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from llamalane.errors import LeaseReleasedError, PoolError
from llamalane.ids import SequenceId
from llamalane.streams.steps import LaneBackend
from llamalane.streams.stream import Stream


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
    def evicted(self) -> tuple[SequenceId, ...]:
        """Sequences whose cells were given up for it, and have to be removed first."""


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
        """Return how many of the first `tokens` the best free sequence holds."""

    def keeper(self, tokens: Sequence[int], scope: str) -> tuple[SequenceId, int] | None:
        """Return the free sequence that shares most of `tokens`, and how many."""

    def take(self, tokens: Sequence[int], cells: int, scope: str) -> Place:
        """Take the best free sequence for `tokens`."""

    def grow(self, sequence: SequenceId, cells: int) -> tuple[SequenceId, ...] | None:
        """Reserve so many cells in all, and return whose cells were given up for it; None when there are too few."""

    def pause(self, sequence: SequenceId) -> None:
        """Take a sequence off that runs; it keeps its cells."""

    def settle(self, sequence: SequenceId, cells: int) -> None:
        """Note how many cells a paused sequence fills."""

    def resume(self, sequence: SequenceId, cells: int) -> tuple[SequenceId, ...] | None:
        """Let a paused sequence run again; returns what `grow` returns."""

    def give_back(self, sequence: SequenceId, kept: Sequence[int] = ()) -> None:
        """Free a sequence whose cells hold `kept` from now on."""

    def wipe(self) -> None:
        """Note that the cells are gone."""

    def statistics(self) -> Any:
        """Return the region's numbers."""

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

    @property
    def name(self) -> str:
        """The lane's name."""
        return self.stream.options.name

    @property
    def free(self) -> int:
        """How many of its places can be leased now."""
        return self.region.places - self.leased if self.serving else 0


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
        self.evicted = place.evicted

    @property
    def released(self) -> bool:
        """Whether the place was given back."""
        return self._released

    @property
    def paused(self) -> bool:
        """Whether the permit was given back, and the cells were not."""
        return self._paused

    def grow_nowait(self, cells: int) -> bool:
        """Get `cells` cells in all, if there are so many; `evicted` tells whose were given up for it."""
        self._check_owned()
        evicted = self.lane.region.grow(self.sequence, cells)
        if evicted is None:
            return False
        self.cells, self.evicted = cells, evicted
        return True

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
        evicted = self.lane.region.resume(self.sequence, cells)
        if evicted is None:
            return False
        self._permits.take_permit(self.lane)
        self._paused = False
        self.cells, self.evicted = cells, evicted
        return True

    def release(self, kept: Sequence[int] = ()) -> None:
        """Give the place back; its cells hold `kept`, for a request that continues it.

        Raises `LeaseReleasedError` the second time.
        """
        if self._released:
            raise LeaseReleasedError(f"the lease of {self.lane.name}/{self.sequence} was released before")
        self.lane.region.give_back(self.sequence, kept)
        if not self._paused:
            self._permits.give_permit(self.lane)
        self._released = True

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

"""The pool of streams: created before any request comes, and lent out place by place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import anyio

from llamalane.errors import LeaseReleasedError, PoolClosedError, PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.streams.steps import LaneBackend, Receiver
from llamalane.streams.stream import Stream, StreamOptions, create_stream


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


class KVRegion(Protocol):
    """What the pool asks of a lane's KV region; `llamalane.kvcache.Region` is one."""

    @property
    def places(self) -> int:
        """How many places there are."""

    @property
    def limit(self) -> int:
        """The most cells that one place can reserve."""

    @property
    def can_roll_back(self) -> bool:
        """Whether the end of a sequence can be dropped, keeping its beginning."""

    @property
    def free(self) -> int:
        """How many places can be taken."""

    def cached(self, tokens: Sequence[int], scope: str) -> int:
        """Return how many of the first `tokens` the best free place holds."""

    def take(self, tokens: Sequence[int], cells: int, scope: str) -> Place:
        """Take the best free place for `tokens`."""

    def give_back(self, sequence: SequenceId, kept: Sequence[int] = ()) -> None:
        """Free a place whose cells hold `kept` from now on."""

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

    @property
    def name(self) -> str:
        """The lane's name."""
        return self.stream.options.name


OpenLane = Callable[[Stream], tuple[LaneBackend, KVRegion]]
"""Opens the lane that runs on a stream, with its region; raises what keeps it from opening."""


class StreamPool:
    """Every stream with its lane, and a semaphore that counts their free places.

    The constructor creates all streams and opens all lanes, or closes those that it has opened and raises. It blocks
    while contexts are created. All else is for the thread of the event loop only.
    """

    def __init__(self, options: Sequence[StreamOptions], open_lane: OpenLane) -> None:
        names = [entry.name for entry in options]
        if not names or len(set(names)) != len(names):
            raise PoolError(f"a pool needs at least one stream, each with a name of its own; got {names}")
        self._closed = False
        self.lanes: list[PoolLane] = []
        try:
            for stream in [create_stream(entry) for entry in options]:
                self.lanes.append(PoolLane(stream, *open_lane(stream)))
        except BaseException:
            self.close()
            raise
        self.places = sum(lane.region.places for lane in self.lanes)
        self._semaphore = anyio.Semaphore(self.places, max_value=self.places)
        self._leased = 0

    @property
    def free(self) -> int:
        """How many places can be leased now."""
        return self._semaphore.value

    @property
    def leased(self) -> int:
        """How many places are leased."""
        return self._leased

    @property
    def limit(self) -> int:
        """The most tokens that a sequence can hold on every lane."""
        return min(lane.region.limit for lane in self.lanes)

    def start(self, receiver: Receiver) -> None:
        """Let every lane begin to carry out plans."""
        for lane in self.lanes:
            lane.backend.start(receiver)

    def lane(self, name: str) -> PoolLane:
        """Return the lane called `name`; raises `PoolError` when there is none."""
        for lane in self.lanes:
            if lane.name == name:
                return lane
        raise PoolError(f"no lane is called {name!r}; there are {', '.join(lane.name for lane in self.lanes)}")

    def acquire_nowait(self, tokens: Sequence[int] = (), *, cells: int, scope: str = "") -> Lease:
        """Lease a place with `cells` KV cells: where most `tokens` are cached, else on the lane with most places free.

        Only what was kept under the same `scope` counts as cached. Raises `PoolExhaustedError` when no place is free,
        `PoolClosedError` after closing.
        """
        self._check_open()
        try:
            self._semaphore.acquire_nowait()
        except anyio.WouldBlock:
            raise PoolExhaustedError("no place is free in the pool") from None
        return self._lease(tokens, cells, scope)

    def suspend(self, lane: PoolLane) -> None:
        """Withhold the places of a lane that has lost its context.

        Raises `PoolError` while one of them is leased.
        """
        if not lane.serving:
            return
        if lane.region.free < lane.region.places:
            raise PoolError(f"lane {lane.name} cannot be suspended: it has places that are leased")
        for _ in range(lane.region.places):
            self._semaphore.acquire_nowait()
        lane.serving = False
        lane.region.wipe()

    def resume(self, lane: PoolLane) -> None:
        """Lend the places of a suspended lane again."""
        if lane.serving:
            return
        lane.serving = True
        for _ in range(lane.region.places):
            self._semaphore.release()

    def close(self) -> None:
        """Close every lane. Blocks until their threads have ended; may be repeated."""
        self._closed = True
        for lane in self.lanes:
            lane.backend.close()

    def check(self) -> None:
        """Raise `PoolError` unless every place is either free, leased or withheld, and the regions' books add up."""
        for lane in self.lanes:
            lane.region.check()
        withheld = sum(lane.region.places for lane in self.lanes if not lane.serving)
        if self.free + self.leased + withheld != self.places:
            raise PoolError(
                f"{self.free} free + {self.leased} leased + {withheld} withheld are not {self.places} places"
            )

    def _lease(self, tokens: Sequence[int], cells: int, scope: str) -> Lease:
        serving = [lane for lane in self.lanes if lane.serving and lane.region.free]
        lane = max(serving, key=lambda lane: (lane.region.cached(tokens, scope), lane.region.free))
        try:
            place = lane.region.take(tokens, cells, scope)
        except BaseException:
            self._semaphore.release()
            raise
        self._leased += 1
        return Lease(self, lane, place)

    def _release(self, lease: Lease, kept: Sequence[int]) -> None:
        lease.lane.region.give_back(lease.sequence, kept)
        self._leased -= 1
        self._semaphore.release()

    def _check_open(self) -> None:
        if self._closed:
            raise PoolClosedError("the pool is closed")


class Lease:
    """One place on one lane: a permit, a sequence id and KV cells, owned until `release`.

    Use it in a `with` block, or release it exactly once; forgetting it warns.
    """

    def __init__(self, pool: StreamPool, lane: PoolLane, place: Place) -> None:
        self._pool = pool
        self._released = False
        self.lane = lane
        self.sequence = place.sequence
        self.cells = place.cells
        self.cached = place.cached

    @property
    def released(self) -> bool:
        """Whether the place was given back."""
        return self._released

    def release(self, kept: Sequence[int] = ()) -> None:
        """Give the place back; its cells hold `kept`, for a request that continues it.

        Raises `LeaseReleasedError` the second time.
        """
        if self._released:
            raise LeaseReleasedError(f"the lease of {self.lane.name}/{self.sequence} was released before")
        self._pool._release(self, kept)
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

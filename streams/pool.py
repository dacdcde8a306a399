"""The pool of streams: created before any request comes, and lent out place by place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import anyio

from llamalane.errors import PoolClosedError, PoolError, PoolExhaustedError
from llamalane.streams.lease import KVRegion, Lease, PoolLane
from llamalane.streams.steps import LaneBackend, Receiver
from llamalane.streams.stream import Stream, StreamOptions, create_stream

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

    @property
    def free(self) -> int:
        """How many places can be leased now."""
        return self._semaphore.value

    def free_on(self, model: str) -> int:
        """Return how many places can be leased now on the lanes of a model, as `lanes_of` names it."""
        return sum(lane.free for lane in self.lanes if lane.model == model)

    @property
    def leased(self) -> int:
        """How many places are leased."""
        return sum(lane.leased for lane in self.lanes)

    @property
    def limit(self) -> int:
        """The most tokens that a sequence can hold on every lane that generates; on every lane if none does."""
        return min(lane.region.limit for lane in self.lanes_of("") or self.lanes)

    def lanes_of(self, model: str) -> list[PoolLane]:
        """Return the lanes on which a model embeds; for an empty name, those that generate."""
        return [lane for lane in self.lanes if lane.model == model]

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

    def acquire_nowait(
        self, tokens: Sequence[int] = (), *, cells: int, scope: str = "", lane: PoolLane | None = None
    ) -> Lease:
        """Lease a place with `cells` KV cells on `lane`, or else where `best_lane` says.

        Only what was kept under the same `scope` counts as cached. Raises `PoolExhaustedError` when no place is free,
        or the lane has too few cells, `PoolClosedError` after closing.
        """
        self._check_open()
        lane = lane or self.best_lane(tokens, cells=cells, scope=scope)
        if lane is None:
            raise PoolExhaustedError("no place is free in the pool")
        self.take_permit(lane)
        try:
            place = lane.region.take(tokens, cells, scope)
        except BaseException:
            self.give_permit(lane)
            raise
        return Lease(self, lane, place)

    def best_lane(
        self, tokens: Sequence[int] = (), *, cells: int, scope: str = "", among: Iterable[PoolLane] | None = None
    ) -> PoolLane | None:
        """Return the lane that has most of `tokens` cached, else most places free; None when none has room.

        It is one of those in `among`, None for all.
        """
        lanes = [
            lane
            for lane in (self.lanes if among is None else among)
            if lane.free and lane.region.free and lane.region.room >= cells
        ]
        if len(lanes) < 2:
            return lanes[0] if lanes else None
        return max(lanes, key=lambda lane: (lane.region.cached(tokens, scope), lane.free))

    def suspend(self, lane: PoolLane) -> None:
        """Withhold the places of a lane that has lost its context.

        Raises `PoolError` while one of them is leased, or a paused lease has cells there.
        """
        if not lane.serving:
            return
        if lane.leased:
            raise PoolError(f"lane {lane.name} cannot be suspended: it has places that are leased")
        lane.region.wipe()
        self._take_permits(lane.free)
        lane.serving = False

    def resume(self, lane: PoolLane) -> None:
        """Lend the places of a suspended lane again."""
        if lane.serving:
            return
        lane.serving = True
        self._give_permits(lane.free)

    def withhold(self, lane: PoolLane) -> None:
        """Lend no more places of a lane, until `lend`; those that are leased stay so, and do not come free."""
        self._take_permits(lane.free)
        lane.withheld = True

    def lend(self, lane: PoolLane) -> None:
        """Lend the places of a lane again that were withheld."""
        if lane.withheld:
            lane.withheld = False
            self._give_permits(lane.free)

    def close(self) -> None:
        """Close every lane. Blocks until their threads have ended; may be repeated."""
        self._closed = True
        for lane in self.lanes:
            lane.backend.close()

    def check(self) -> None:
        """Raise `PoolError` unless every place is either free, leased or withheld, and the regions' books add up."""
        for lane in self.lanes:
            lane.region.check()
        kept = {lane.name: lane.region.places - lane.leased for lane in self.lanes if lane.withheld}
        withheld = sum(kept.get(lane.name, lane.region.places) for lane in self.lanes if not lane.open)
        if self.free + self.leased + withheld != self.places:
            raise PoolError(
                f"{self.free} free + {self.leased} leased + {withheld} withheld are not {self.places} places"
            )

    def take_permit(self, lane: PoolLane) -> None:
        """Take one of a lane's permits; for leases only."""
        if not lane.free:
            raise PoolExhaustedError(f"no place is free on lane {lane.name}")
        self._semaphore.acquire_nowait()
        lane.leased += 1

    def give_permit(self, lane: PoolLane) -> None:
        """Give back one of a lane's permits; for leases only."""
        lane.leased -= 1
        if lane.open:
            self._semaphore.release()

    def _take_permits(self, count: int) -> None:
        for _ in range(count):
            self._semaphore.acquire_nowait()

    def _give_permits(self, count: int) -> None:
        for _ in range(count):
            self._semaphore.release()

    def _check_open(self) -> None:
        if self._closed:
            raise PoolClosedError("the pool is closed")

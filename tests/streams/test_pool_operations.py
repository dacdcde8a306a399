"""Random operations on a pool of three lanes, beside the simplest count of who has what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.streams import Lease, PoolLane, StreamPool
from tests.streams.fakes import LaneOpener, stream_options

CELLS, LIMIT, PLACES, SPARE = 40, 40, 2, 2
NAMES = ["a", "b", "c"]
OPERATIONS = ["acquire", "acquire", "grow", "pause", "settle", "resume", "release", "suspend", "take back"]

pytestmark = pytest.mark.anyio


class Count:
    """Every lease by lane, and the cells that each of them has."""

    def __init__(self) -> None:
        self.pool = StreamPool([stream_options(name, PLACES) for name in NAMES], LaneOpener(cells=CELLS, spare=SPARE))
        self.cells: dict[Lease, int] = {}
        self.suspended: set[str] = set()

    def running(self, lane: PoolLane | None = None) -> list[Lease]:
        return [lease for lease in self.cells if not lease.paused and lane in (None, lease.lane)]

    def paused(self, lane: PoolLane | None = None) -> list[Lease]:
        return [lease for lease in self.cells if lease.paused and lane in (None, lease.lane)]

    def room(self, lane: PoolLane) -> int:
        return CELLS - sum(cells for lease, cells in self.cells.items() if lease.lane is lane)

    def places(self, lane: PoolLane) -> int:
        return 0 if lane.name in self.suspended else PLACES - len(self.running(lane))

    def sequences(self, lane: PoolLane) -> int:
        return PLACES + SPARE - len(self.running(lane)) - len(self.paused(lane))

    def do(self, operation: str, number: int, cells: int) -> None:
        lane = self.pool.lanes[number % len(NAMES)]
        match operation:
            case "acquire":
                self.acquire(cells)
            case "grow" if self.running():
                lease = pick(self.running(), number)
                wanted = max(cells, lease.cells)
                fits = wanted - lease.cells <= self.room(lease.lane)
                assert lease.grow_nowait(wanted) == fits
                if fits:
                    self.cells[lease] = wanted
            case "pause" if self.running():
                pick(self.running(), number).pause()
            case "settle" if self.paused():
                lease = pick(self.paused(), number)
                self.cells[lease] = min(cells, lease.cells)
                lease.settle(self.cells[lease])
            case "resume" if self.paused():
                lease = pick(self.paused(), number)
                wanted = max(cells, lease.cells)
                fits = self.places(lease.lane) > 0 and wanted - lease.cells <= self.room(lease.lane)
                assert lease.resume_nowait(wanted) == fits
                if fits:
                    self.cells[lease] = wanted
            case "release" if self.cells:
                lease = pick(list(self.cells), number)
                lease.release([number % 5] * min(cells, lease.cells))
                del self.cells[lease]
            case "suspend" if not self.running(lane) and not self.paused(lane):
                self.pool.suspend(lane)
                self.suspended.add(lane.name)
            case "take back":
                self.pool.resume(lane)
                self.suspended.discard(lane.name)

    def acquire(self, cells: int) -> None:
        tokens = [cells % 5] * cells
        open_lanes = [
            lane for lane in self.pool.lanes if self.places(lane) and self.sequences(lane) and self.room(lane) >= cells
        ]
        lane = self.pool.best_lane(tokens, cells=cells)
        assert (lane is None) == (not open_lanes)
        if lane is not None:
            assert lane in open_lanes
            lease = self.pool.acquire_nowait(tokens, cells=cells)
            assert lease.lane is lane
            self.cells[lease] = cells

    def check(self) -> None:
        self.pool.check()
        assert self.pool.leased == len(self.running())
        assert self.pool.free == sum(self.places(lane) for lane in self.pool.lanes)
        held = [(lease.lane.name, lease.sequence) for lease in self.cells]
        assert len(set(held)) == len(held), "two leases have one sequence"
        assert all(lease.cells == cells for lease, cells in self.cells.items())
        for lane in self.pool.lanes:
            statistics = lane.region.statistics()
            assert statistics.reserved == sum(lease.cells for lease in self.running(lane))
            assert statistics.paused == sum(lease.cells for lease in self.paused(lane))
            assert statistics.reserved + statistics.paused + statistics.kept <= CELLS
            assert (lane.leased, lane.free) == (len(self.running(lane)), self.places(lane))
            assert (lane.region.free, lane.region.room) == (self.sequences(lane), self.room(lane))


def pick(leases: Sequence[Lease], number: int) -> Lease:
    return leases[number % len(leases)]


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 11), st.integers(1, LIMIT)), max_size=60))
async def test_no_permit_no_sequence_and_no_cell_is_ever_lost_or_made_up(
    operations: list[tuple[str, int, int]],
) -> None:
    count = Count()
    for operation in operations:
        count.do(*operation)
        count.check()
    for lease in list(count.cells):
        lease.release()
        del count.cells[lease]
        count.check()
    for lane in count.pool.lanes:
        count.pool.resume(lane)
    assert count.pool.free == len(NAMES) * PLACES

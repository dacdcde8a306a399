"""Leases that grow, are paused, and run again."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from llamalane.errors import LeaseReleasedError, PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache import Evicted
from llamalane.streams import Lease, StreamPool
from tests.streams.fakes import LaneOpener, stream_options

CELLS = 40

pytestmark = pytest.mark.anyio


def open_pool(*names: str, places: int = 1, spare: int = 2) -> StreamPool:
    opener = LaneOpener(cells=CELLS, spare=spare)
    return StreamPool([stream_options(name, places) for name in names or ("a",)], opener)


def forget(lease: Lease) -> None:
    del lease
    gc.collect()


def paused(lease: Lease) -> Lease:
    lease.pause()
    return lease


async def test_pausing_gives_the_permit_back_and_keeps_sequence_and_cells() -> None:
    pool = open_pool()
    with pool.acquire_nowait(cells=12) as lease:
        sequence = lease.sequence
        lease.pause()
        assert lease.paused
        assert (lease.sequence, lease.cells) == (sequence, 12)
        assert (pool.free, pool.leased, lease.lane.leased, lease.lane.free) == (1, 0, 0, 1)
        assert lease.lane.region.statistics().paused == 12
        pool.check()


async def test_another_runs_on_a_sequence_of_its_own_meanwhile() -> None:
    pool = open_pool()
    with paused(pool.acquire_nowait(cells=12)) as lease, pool.acquire_nowait(cells=12) as running:
        assert running.sequence != lease.sequence
        assert pool.leased == 1
        pool.check()


async def test_resuming_needs_a_place() -> None:
    pool = open_pool()
    with pool.acquire_nowait(cells=5) as lease:
        lease.pause()
        running = pool.acquire_nowait(cells=5)
        assert not lease.resume_nowait(5)
        assert (lease.paused, pool.leased) == (True, 1)
        running.release()
        assert lease.resume_nowait(8)
        assert (lease.paused, lease.cells, pool.leased) == (False, 8, 1)
        pool.check()


async def test_resuming_needs_cells() -> None:
    pool = open_pool(places=2)
    with pool.acquire_nowait(cells=10) as lease:
        lease.pause()
        with pool.acquire_nowait(cells=20):
            assert not lease.resume_nowait(21)
            assert (lease.paused, lease.cells, pool.leased) == (True, 10, 1)
            assert lease.resume_nowait(20)
            assert pool.leased == 2
        pool.check()


def given_up(lease: Lease) -> list[SequenceId]:
    return [change.sequence for change in lease.changes if isinstance(change, Evicted)]


async def test_resuming_tells_whose_cells_were_given_up() -> None:
    pool = open_pool()
    with pool.acquire_nowait(cells=10) as lease:
        lease.pause()
        kept = pool.acquire_nowait(cells=30)
        kept.release([7] * 25)
        assert lease.resume_nowait(12)
        assert given_up(lease) == []
        lease.pause()
        assert lease.resume_nowait(16)
        assert given_up(lease) == [kept.sequence]


async def test_a_settled_lease_has_only_what_it_fills() -> None:
    pool = open_pool()
    with pool.acquire_nowait(cells=30) as lease:
        lease.pause()
        lease.settle(9)
        assert (lease.cells, lease.cached) == (9, 9)
        assert lease.lane.region.room == CELLS - 9


async def test_a_lease_grows_while_there_are_cells() -> None:
    pool = open_pool(places=2)
    with pool.acquire_nowait(cells=10) as lease, pool.acquire_nowait(cells=10):
        assert lease.grow_nowait(30)
        assert lease.cells == 30
        assert not lease.grow_nowait(31)
        assert lease.cells == 30
        pool.check()


async def test_growing_tells_whose_cells_were_given_up() -> None:
    pool = open_pool(places=2)
    kept = pool.acquire_nowait(cells=25)
    with pool.acquire_nowait(cells=10) as lease:
        kept.release([7] * 25)
        assert lease.grow_nowait(15)
        assert given_up(lease) == []
        assert lease.grow_nowait(16)
        assert given_up(lease) == [kept.sequence]


async def test_taking_a_place_tells_whose_cells_were_given_up() -> None:
    pool = open_pool()
    kept = pool.acquire_nowait(cells=25)
    kept.release([7] * 25)
    with pool.acquire_nowait([1, 2], cells=16) as lease:
        assert given_up(lease) == [kept.sequence]


async def test_a_paused_lease_gives_back_its_cells_and_no_second_permit() -> None:
    pool = open_pool()
    lease = pool.acquire_nowait(cells=12)
    lease.pause()
    lease.release()
    assert (pool.free, pool.leased) == (1, 0)
    assert lease.lane.region.room == CELLS
    assert lease.lane.region.free == 3
    pool.check()


async def test_a_paused_lease_can_leave_its_cells_to_who_continues_it() -> None:
    pool = open_pool()
    lease = pool.acquire_nowait(cells=12)
    lease.pause()
    lease.settle(4)
    lease.release([1, 2, 3, 4])
    with pool.acquire_nowait([1, 2, 3, 4, 5], cells=12) as again:
        assert (again.sequence, again.cached) == (lease.sequence, 4)


async def test_a_paused_lease_is_released_once() -> None:
    pool = open_pool()
    lease = paused(pool.acquire_nowait(cells=12))
    lease.release()
    with pytest.raises(LeaseReleasedError, match="was released before"):
        lease.release()
    assert pool.free == 1
    pool.check()


async def test_a_with_block_releases_a_paused_lease() -> None:
    pool = open_pool()
    with pool.acquire_nowait(cells=12) as lease:
        lease.pause()
    assert lease.released
    assert lease.lane.region.room == CELLS
    pool.check()


async def test_a_forgotten_paused_lease_warns() -> None:
    pool = open_pool()
    with pytest.warns(ResourceWarning, match="Lease of a/0, 3 cells.*was never released"):
        forget(paused(pool.acquire_nowait(cells=3)))


USES: dict[str, Callable[[Lease], object]] = {
    "grow": lambda lease: lease.grow_nowait(20),
    "pause": lambda lease: lease.pause(),
    "settle": lambda lease: lease.settle(1),
    "resume": lambda lease: lease.resume_nowait(20),
}


@pytest.mark.parametrize("use", ["settle", "resume"])
async def test_what_runs_is_not_treated_as_paused(use: str) -> None:
    pool = open_pool(places=2)
    with pool.acquire_nowait(cells=12) as lease:
        with pytest.raises(PoolError, match="was given back or is not paused"):
            USES[use](lease)
        assert (lease.cells, pool.leased) == (12, 1)
        pool.check()


@pytest.mark.parametrize("use", ["grow", "pause"])
async def test_what_is_paused_is_not_treated_as_running(use: str) -> None:
    pool = open_pool(places=2)
    with pool.acquire_nowait(cells=12) as lease:
        lease.pause()
        with pytest.raises(PoolError, match="was given back or is paused"):
            USES[use](lease)
        assert (lease.cells, pool.leased) == (12, 0)
        pool.check()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("pausing", [False, True])
async def test_a_released_lease_never_touches_who_has_its_sequence_now(use: str, pausing: bool) -> None:
    pool = open_pool(places=2, spare=0)
    gone = pool.acquire_nowait(cells=12)
    if use in ("settle", "resume"):
        gone.pause()
    gone.release()
    with pool.acquire_nowait(cells=12) as other, pool.acquire_nowait(cells=1) as third:
        assert gone.sequence in (other.sequence, third.sequence)
        if pausing:
            other.pause()
        before = other.lane.region.statistics()
        with pytest.raises(PoolError, match="was given back"):
            USES[use](gone)
        assert other.lane.region.statistics() == before
        assert pool.leased == (1 if pausing else 2)
        pool.check()


async def test_a_lane_with_a_paused_lease_is_not_suspended() -> None:
    pool = open_pool("a", "b")
    with pool.acquire_nowait(cells=12) as lease:
        lease.pause()
        with pytest.raises(PoolError, match=f"sequence {lease.sequence} is still taken"):
            pool.suspend(lease.lane)
        assert (lease.lane.serving, pool.free) == (True, 2)
        pool.check()
    pool.suspend(lease.lane)
    assert (lease.lane.serving, pool.free) == (False, 1)


async def test_nothing_resumes_on_a_suspended_lane() -> None:
    pool = open_pool("a", "b", places=2)
    lane = pool.lane("a")
    pool.suspend(lane)
    assert (lane.free, pool.lane("b").free) == (0, 2)
    with pytest.raises(PoolExhaustedError, match="no place is free on lane a"):
        pool.acquire_nowait(cells=1, lane=lane)
    pool.check()


async def test_each_lane_counts_its_own_places() -> None:
    pool = open_pool("a", "b", places=2)
    left, right = pool.lanes
    with pool.acquire_nowait(cells=1, lane=left), pool.acquire_nowait(cells=1, lane=left):
        assert [(lane.leased, lane.free) for lane in pool.lanes] == [(2, 0), (0, 2)]
        with pytest.raises(PoolExhaustedError, match="no place is free on lane a"):
            pool.acquire_nowait(cells=1, lane=left)
        with pool.acquire_nowait(cells=1) as lease:
            assert lease.lane is right


async def test_the_best_lane_is_one_of_those_that_are_named() -> None:
    pool = open_pool("a", "b", "c", places=2)
    a, b, c = pool.lanes
    pool.acquire_nowait([1, 2, 3], cells=5, lane=a).release([1, 2, 3])
    asked = [1, 2, 3, 4]
    assert pool.best_lane(asked, cells=5) is a
    assert pool.best_lane(asked, cells=5, among=[b, a]) is a
    assert pool.best_lane(asked, cells=5, among=[c]) is c
    assert pool.best_lane(asked, cells=5, among=[]) is None
    with pool.acquire_nowait(cells=1, lane=b):
        assert pool.best_lane(asked, cells=5, among=(lane for lane in (b, c))) is c


async def test_the_best_lane_has_a_place_a_sequence_and_cells() -> None:
    pool = open_pool("a", "b", spare=1)
    a, b = pool.lanes
    with pool.acquire_nowait(cells=1, lane=a):
        assert pool.best_lane(cells=1) is b, "the other has no place"
    with pool.acquire_nowait(cells=30, lane=a) as lease:
        lease.pause()
        assert pool.best_lane(cells=10, among=[a]) is a
        assert pool.best_lane(cells=11) is b, "the other has too few cells"
        assert pool.best_lane(cells=11, among=[a]) is None
        with pool.acquire_nowait(cells=1, lane=a) as second:
            second.pause()
            assert pool.best_lane(cells=1, among=[a]) is None, "it has no sequence"
            assert pool.best_lane(cells=1) is b


async def test_a_lane_without_cells_lends_no_place_and_keeps_its_permit() -> None:
    pool = open_pool(places=2)
    with pool.acquire_nowait(cells=30):
        with pytest.raises(PoolExhaustedError, match="11 KV cells are wanted, and 10 can be reserved"):
            pool.acquire_nowait(cells=11, lane=pool.lanes[0])
        assert (pool.free, pool.leased) == (1, 1)
        with pytest.raises(PoolExhaustedError, match="no place is free in the pool"):
            pool.acquire_nowait(cells=11)
        pool.check()

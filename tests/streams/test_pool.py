from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence

import pytest

from llamalane.errors import LeaseReleasedError, PoolClosedError, PoolError, PoolExhaustedError
from llamalane.streams import Lease, StreamPool
from llamalane.streams.steps import LaneMessage
from tests.streams.fakes import LIMIT, FakeLane, LaneOpener, stream_options

NAMES = ["a", "b", "c"]

pytestmark = pytest.mark.anyio


def open_pool(opener: LaneOpener | None = None, names: Sequence[str] = NAMES, places: int = 4) -> StreamPool:
    return StreamPool([stream_options(name, places) for name in names], opener or LaneOpener())


def lease_all(pool: StreamPool) -> list[Lease]:
    leases = []
    with contextlib.suppress(PoolExhaustedError):
        while True:
            leases.append(pool.acquire_nowait(cells=1))
    return leases


def forget(*leases: Lease) -> None:
    del leases
    gc.collect()


async def test_every_place_of_every_lane_can_be_leased_once() -> None:
    pool = open_pool()
    leases = lease_all(pool)
    assert {(lease.lane.name, lease.sequence) for lease in leases} == {(name, i) for name in NAMES for i in range(4)}
    assert (pool.places, pool.free, pool.leased) == (12, 0, 12)
    pool.check()
    for lease in leases:
        lease.release()
        pool.check()
    assert (pool.free, pool.leased) == (12, 0)


async def test_an_exhausted_pool_says_so_and_serves_again_after_a_release() -> None:
    pool = open_pool()
    first, *rest = lease_all(pool)
    with pytest.raises(PoolExhaustedError, match="no place is free in the pool"):
        pool.acquire_nowait(cells=1)
    first.release()
    again = pool.acquire_nowait(cells=1)
    assert (again.lane, again.sequence) == (first.lane, first.sequence)
    for lease in (*rest, again):
        lease.release()


async def test_work_goes_to_the_lane_with_most_places_free() -> None:
    pool = open_pool()
    leases = [pool.acquire_nowait(cells=1) for _ in range(6)]
    names = [lease.lane.name for lease in leases]
    assert [names.count(name) for name in NAMES] == [2, 2, 2]
    for lease in leases:
        lease.release()


async def test_a_request_goes_where_its_beginning_is_cached_even_on_the_busiest_lane() -> None:
    pool = open_pool()
    leases = lease_all(pool)
    (place,) = [lease for lease in leases if (lease.lane.name, lease.sequence) == ("b", 2)]
    others = [lease for lease in leases if lease.lane.name != "b"]
    place.release([1])
    for lease in others:
        lease.release()
    with pool.acquire_nowait([1, 2, 3], cells=5) as lease:
        assert (lease.lane.name, lease.sequence, lease.cached, lease.cells) == ("b", 2, 1, 5)
    for lease in leases:
        if lease is not place and lease not in others:
            lease.release()


async def test_nothing_cached_is_shared_between_scopes() -> None:
    pool = open_pool(names=["a"], places=1)
    pool.acquire_nowait([1, 2, 3], cells=5, scope="alice").release([1, 2, 3])
    with pool.acquire_nowait([1, 2, 3, 4], cells=5, scope="bob") as lease:
        assert lease.cached == 0


async def test_a_lease_is_released_once() -> None:
    pool = open_pool()
    lease = pool.acquire_nowait(cells=1)
    assert not lease.released
    lease.release()
    assert lease.released
    with pytest.raises(LeaseReleasedError, match="was released before"):
        lease.release()
    assert pool.free == 12


async def test_a_with_block_releases_its_lease_whatever_happens() -> None:
    pool = open_pool()
    with contextlib.suppress(ZeroDivisionError), pool.acquire_nowait(cells=1):
        raise ZeroDivisionError
    with pool.acquire_nowait(cells=1) as lease:
        lease.release()
    assert (pool.free, pool.leased) == (12, 0)


async def test_a_forgotten_lease_warns() -> None:
    pool = open_pool(names=["a"])
    with pytest.warns(ResourceWarning, match="Lease of a/0, 3 cells.*was never released"):
        forget(pool.acquire_nowait(cells=3))
    assert pool.free == 3


async def test_a_release_that_is_refused_leaves_the_lease_as_it_was() -> None:
    pool = open_pool()
    with pool.acquire_nowait(cells=2) as lease:
        with pytest.raises(PoolError, match="3 cells cannot be kept"):
            lease.release([1, 2, 3])
        assert not lease.released
        pool.check()
    assert (pool.free, pool.leased) == (12, 0)


@pytest.mark.parametrize("cells", [0, LIMIT + 1])
async def test_a_lease_that_is_refused_costs_no_permit(cells: int) -> None:
    pool = open_pool()
    with pytest.raises(PoolError, match=f"from 1 to {LIMIT} cells"):
        pool.acquire_nowait(cells=cells)
    assert pool.free == 12
    pool.check()


async def test_a_suspended_lane_lends_nothing_until_it_is_resumed() -> None:
    pool = open_pool()
    lane = pool.lane("b")
    pool.acquire_nowait([1, 2], cells=5).release([1, 2])
    pool.suspend(lane)
    assert (pool.free, lane.serving) == (8, False)
    pool.check()
    leases = lease_all(pool)
    assert len(leases) == 8
    assert all(lease.lane is not lane for lease in leases)
    pool.resume(lane)
    pool.check()
    assert lane.serving
    more = lease_all(pool)
    assert [lease.lane for lease in more] == [lane] * 4
    for lease in (*leases, *more):
        lease.release()


async def test_suspending_and_resuming_twice_counts_once() -> None:
    pool = open_pool()
    lane = pool.lane("a")
    pool.resume(lane)
    assert pool.free == 12
    pool.suspend(lane)
    pool.suspend(lane)
    assert pool.free == 8
    pool.resume(lane)
    pool.resume(lane)
    assert pool.free == 12
    pool.check()


async def test_a_suspended_lane_has_lost_what_it_kept() -> None:
    pool = open_pool(names=["a"])
    pool.acquire_nowait([1, 2], cells=5).release([1, 2])
    pool.suspend(pool.lane("a"))
    pool.resume(pool.lane("a"))
    with pool.acquire_nowait([1, 2, 3], cells=5) as lease:
        assert lease.cached == 0


async def test_a_lane_with_leases_is_not_suspended() -> None:
    pool = open_pool()
    with pool.acquire_nowait(cells=1) as lease:
        with pytest.raises(PoolError, match=f"lane {lease.lane.name} cannot be suspended"):
            pool.suspend(lease.lane)
        pool.check()
        assert lease.lane.serving
        assert pool.free == 11


async def test_with_every_lane_suspended_the_pool_is_exhausted() -> None:
    pool = open_pool()
    for lane in pool.lanes:
        pool.suspend(lane)
    with pytest.raises(PoolExhaustedError):
        pool.acquire_nowait(cells=1)
    pool.check()


async def test_a_closed_pool_lends_nothing_but_takes_leases_back() -> None:
    opener = LaneOpener()
    pool = open_pool(opener)
    lease = pool.acquire_nowait(cells=1)
    pool.close()
    pool.close()
    assert all(lane.closings >= 1 for lane in opener.lanes)
    with pytest.raises(PoolClosedError):
        pool.acquire_nowait(cells=1)
    lease.release()
    assert (pool.free, pool.leased) == (12, 0)


async def test_every_lane_gets_the_receiver() -> None:
    opener = LaneOpener()
    pool = open_pool(opener)
    messages: list[LaneMessage] = []
    pool.start(messages.append)
    assert [lane.name for lane in opener.lanes] == NAMES
    for lane in opener.lanes:
        assert isinstance(lane, FakeLane)
        assert lane.receiver == messages.append


async def test_permits_that_vanish_are_noticed() -> None:
    pool = open_pool()
    with pool.acquire_nowait(cells=1) as lease:
        lease.lane.serving = False  # without withholding its places
        with pytest.raises(PoolError, match="11 free \\+ 1 leased \\+ 4 withheld are not 12 places"):
            pool.check()


def test_all_lanes_open_or_none_stays() -> None:
    opener = LaneOpener(broken="c")
    with pytest.raises(OSError, match="c cannot be opened"):
        open_pool(opener)
    assert [(lane.name, lane.closings) for lane in opener.lanes] == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("names", [[], ["a", "a"], ["a", "b", "a"]])
def test_streams_need_names_of_their_own(names: list[str]) -> None:
    opener = LaneOpener()
    with pytest.raises(PoolError, match="each with a name of its own"):
        open_pool(opener, names)
    assert opener.lanes == []


def test_lanes_are_found_by_name() -> None:
    pool = open_pool()
    assert pool.lane("b").name == "b"
    with pytest.raises(PoolError, match="no lane is called 'x'; there are a, b, c"):
        pool.lane("x")


def test_a_sequence_must_fit_every_lane() -> None:
    assert open_pool().limit == LIMIT

"""Lanes whose free places are not lent."""

from __future__ import annotations

import pytest

from llamalane.errors import PoolExhaustedError
from tests.streams.test_pool import lease_all, open_pool

pytestmark = pytest.mark.anyio


async def test_a_withheld_lane_lends_nothing_and_keeps_what_comes_back() -> None:
    pool = open_pool(names=["a", "b"])
    lane = pool.lane("a")
    held = pool.acquire_nowait(cells=1, lane=lane)
    pool.withhold(lane)
    assert (pool.free, lane.free, lane.open) == (4, 0, False)
    pool.check()
    with pytest.raises(PoolExhaustedError, match="no place is free on lane a"):
        pool.acquire_nowait(cells=1, lane=lane)
    others = lease_all(pool)
    assert {lease.lane.name for lease in others} == {"b"}
    held.release()
    assert pool.free == 0
    pool.check()
    pool.lend(lane)
    assert (pool.free, lane.free, lane.open) == (4, 4, True)
    pool.check()
    for lease in others:
        lease.release()
    assert pool.free == 8


async def test_withholding_and_lending_twice_counts_once() -> None:
    pool = open_pool(names=["a", "b"])
    lane = pool.lane("a")
    pool.lend(lane)
    assert pool.free == 8
    for _ in range(2):
        pool.withhold(lane)
        assert pool.free == 4
    for _ in range(2):
        pool.lend(lane)
        assert pool.free == 8
    pool.check()


async def test_a_paused_lease_does_not_go_on_on_a_withheld_lane() -> None:
    pool = open_pool(names=["a"])
    lease = pool.acquire_nowait(cells=1)
    lease.pause()
    pool.withhold(lease.lane)
    assert not lease.resume_nowait(1)
    pool.check()
    pool.lend(lease.lane)
    assert lease.resume_nowait(1)
    lease.release()
    pool.check()


@pytest.mark.parametrize("lend_first", [False, True])
async def test_a_withheld_lane_can_lose_its_context_and_get_another(lend_first: bool) -> None:
    pool = open_pool(names=["a", "b"])
    lane = pool.lane("a")
    pool.withhold(lane)
    pool.suspend(lane)
    assert pool.free == 4
    pool.check()
    undo = [pool.lend, pool.resume] if lend_first else [pool.resume, pool.lend]
    for take_back in undo:
        assert pool.free == 4
        take_back(lane)
        pool.check()
    assert pool.free == 8


async def test_a_suspended_lane_can_be_withheld() -> None:
    pool = open_pool(names=["a", "b"])
    lane = pool.lane("a")
    pool.suspend(lane)
    pool.withhold(lane)
    pool.resume(lane)
    assert pool.free == 4
    pool.check()
    pool.lend(lane)
    assert pool.free == 8

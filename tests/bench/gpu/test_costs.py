"""The measurement of what streams, contexts and places cost, on CPU lanes."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamalane.bench.gpu.costs import costs_markdown, measure_costs
from llamalane.errors import ConfigError, DeviceUnavailableError
from llamalane.streams.cores import available_cores
from llamalane.streams.cuda import probe


def test_making_and_taking_are_measured(tiny_model: Path) -> None:
    most = len(available_cores())
    costs = measure_costs(tiny_model, on_gpu=False, sizes=(1, most + 1), tries=2)
    assert [cost.count for cost in costs.making] == [2, 2]
    (pool,) = costs.pools
    assert (pool.lanes, pool.places, pool.acquiring.count) == (1, 8, 200)
    assert pool.tokens_per_second > 0
    assert all(0 < cost.median <= cost.slowest for cost in (*costs.making, pool.acquiring))
    assert costs.left_out == f"a lane needs a core of its own, and there are {most}"
    table = costs_markdown(costs)
    assert "| take a place and give it back |" in table
    assert "Larger pools were left out" in table


def test_a_pool_has_no_more_lanes_than_places(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="from 1 to 8 lanes; got 0"):
        measure_costs(tiny_model, on_gpu=False, sizes=(0,), tries=1)


@pytest.mark.skipif(probe().lends, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told(tiny_model: Path) -> None:
    with pytest.raises(DeviceUnavailableError):
        measure_costs(tiny_model, on_gpu=True, tries=1)

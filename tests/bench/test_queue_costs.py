"""What the waiting queue costs: that it is measured at the sizes asked for, and how it is told."""

from __future__ import annotations

import gc

from llamalane.bench.queue_costs import QueueCosts, measure_queue, queue_markdown
from llamalane.bench.summary import Distribution


def seconds(median: float, p99: float) -> Distribution:
    return Distribution(count=3, mean=median, median=median, p90=p99, p95=p99, p99=p99, worst=p99)


def test_every_size_is_measured_for_every_number_of_tenants() -> None:
    told: list[QueueCosts] = []
    costs = measure_queue(sizes=[30, 5], tenants=[1, 3], operations=20, tell=told.append)
    assert costs == told
    assert [(cost.tenants, cost.waiting) for cost in costs] == [(1, 30), (1, 5), (3, 30), (3, 5)]
    for cost in costs:
        assert (cost.push.count, cost.pop.count, cost.remove.count) == (20, 20, min(20, cost.waiting))
        assert min(cost.push.median, cost.pop.median, cost.remove.median, cost.collection) > 0


def test_the_garbage_collector_is_on_again_afterwards() -> None:
    assert gc.isenabled()
    measure_queue(sizes=[1], tenants=[1], operations=1)
    assert gc.isenabled()


def test_costs_stand_beside_those_of_the_smallest_queue() -> None:
    small = QueueCosts(
        waiting=1000, tenants=1, push=seconds(1e-6, 2e-6), pop=seconds(4e-6, 5e-6), remove=seconds(2e-6, 3e-6),
        collection=0.004,
    )  # fmt: skip
    large = QueueCosts(
        waiting=10**6, tenants=1, push=seconds(2e-6, 3e-6), pop=seconds(6e-6, 9e-6), remove=seconds(5e-6, 8e-6),
        collection=0.7,
    )  # fmt: skip
    lines = queue_markdown([large, small]).splitlines()
    assert lines[2] == "| 1 | 1,000,000 | 2.0 (3.0) 2.0× | 6.0 (9.0) 1.5× | 5.0 (8.0) 2.5× | 700 |"
    assert lines[3] == "| 1 | 1,000 | 1.0 (2.0) 1.0× | 4.0 (5.0) 1.0× | 2.0 (3.0) 1.0× | 4 |"

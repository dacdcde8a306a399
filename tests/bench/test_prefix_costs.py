"""What the prefix tree costs: that it is measured at the sizes asked for, and how it is told."""

from __future__ import annotations

import gc

from llamalane.bench.prefix_costs import PrefixCosts, measure_prefixes, prefixes_markdown
from llamalane.bench.summary import Distribution


def seconds(median: float, p99: float) -> Distribution:
    return Distribution(count=3, mean=median, median=median, p90=p99, p95=p99, p99=p99, worst=p99)


def test_every_size_is_measured() -> None:
    costs = measure_prefixes(sizes=[200, 5], requests=20, warm_up=2)
    assert costs[0].runs > 100 > costs[1].runs
    for cost in costs:
        parts = (cost.match, cost.insert, cost.extend, cost.remove)
        assert all(part.count == 20 and part.median > 0 for part in parts)
        assert cost.request.count == 20
        assert cost.request.mean > max(part.mean for part in parts)
    assert gc.isenabled()


def test_each_size_has_its_line() -> None:
    cost = PrefixCosts(
        runs=10_000, match=seconds(2e-6, 3e-6), insert=seconds(4e-6, 5e-6), extend=seconds(1e-6, 2e-6),
        remove=seconds(5e-6, 8e-6), request=seconds(12e-6, 20e-6),
    )  # fmt: skip
    line = prefixes_markdown([cost]).splitlines()[2]
    assert line == "| 10,000 | 2.0 (3.0) | 4.0 (5.0) | 1.0 (2.0) | 5.0 (8.0) | 12.0 (20.0) |"

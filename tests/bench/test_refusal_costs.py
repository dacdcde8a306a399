"""What a refusal costs, at the real server with a tiny model."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from llamalane.bench.peers.kinds import Setup
from llamalane.bench.refusal_costs import RefusalPlan, measure_refusals, refusals_markdown, thread_seconds


def test_refusals_are_measured_over_connections_of_both_kinds(tiny_model: Path) -> None:
    setup = Setup(model=tiny_model, places=2, threads=1, cells=1024, queue=3)
    plan = RefusalPlan(setup=setup, refusals=40, idle_seconds=0.1)
    told: list[str] = []
    costs = measure_refusals(plan, told.append)
    assert [cost.way for cost in costs] == ["a connection each", "one connection"]
    for cost in costs:
        assert cost.seen.count == 40
        assert cost.seen.median > 0
    if sys.platform == "linux":
        assert all(cost.loop is not None and 0 < cost.loop < 1e5 for cost in costs)
    markdown = refusals_markdown(plan, costs)
    assert "40 refusals, one after the other, with 3 requests waiting" in markdown
    assert markdown.count("\n| ") == 4


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_thread_is_told_by_itself() -> None:
    before = thread_seconds(os.getpid(), threading.get_native_id())
    assert before is not None
    while (after := thread_seconds(os.getpid(), threading.get_native_id())) == before:
        sum(range(100_000))  # a running thread's time is brought up to date now and then
    assert after is not None
    assert after > before
    assert thread_seconds(os.getpid(), 1 << 30) is None

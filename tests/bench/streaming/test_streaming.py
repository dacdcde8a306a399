"""The cost of streaming, measured on the tiny model."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio

from llamalane.bench.machine import describe_machine
from llamalane.bench.streaming.measuring import StreamingPlan, measure_streaming, streaming_markdown
from llamalane.bench.workload import Span, Workload


def test_tokens_writes_and_the_loop_s_time_are_told(tiny_model: Path) -> None:
    plan = StreamingPlan(
        model=tiny_model,
        threads=1,
        workload=Workload(words=Span(2, 3), output_tokens=Span(30, 40)),
        streams=4,
        seconds=0.5,
        warm_up=0.1,
        seed=1,
    )
    told: list[str] = []
    report = anyio.run(partial(measure_streaming, plan, describe_machine(), told.append))
    assert len(told) == 2
    for cost in (report.plain, report.probed):
        assert cost.tokens > 0
        assert cost.writes > 0
        assert cost.bytes > cost.writes
        assert 0 < cost.sending <= cost.split.loop
    assert report.plain.sending == report.plain.split.loop
    assert all(seconds > 0 for name, seconds in report.probed.split.parts.items() if name != "tokenizing")
    table = streaming_markdown(report)
    assert "encoding and sending" in table
    assert "4 streams" in table

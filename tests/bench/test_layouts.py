"""The comparison of layouts, on engines with a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamalane.bench.layouts import Clients, Comparison, Run, Situation, layouts_markdown, measure_layouts
from llamalane.kvcache import Layout

pytestmark = pytest.mark.anyio

SMALL = Situation("two small ones", 2, 512, (Clients(1, 2, 10, 4), Clients(1, 1, 40, 4, shared=30)))
LONG = Situation("a long one beside a short one", 2, 512, (Clients(1, 1, 300, 4), Clients(1, 1, 10, 4)))


async def test_both_layouts_are_measured_in_turn(tiny_model: Path) -> None:
    told: list[str] = []
    (comparison,) = await measure_layouts(tiny_model, threads=1, rounds=2, seed=1, tell=told.append, situations=[SMALL])
    order = [line.split(", ")[2].partition(":")[0] for line in told]
    assert order == ["partitioned", "paged", "paged", "partitioned"]
    assert len(comparison.ratios) == 2
    assert all(run.tokens_per_second > 0 and run.first_token > 0 for runs in comparison.runs.values() for run in runs)
    assert not comparison.refused


async def test_what_a_layout_cannot_hold_is_said(tiny_model: Path) -> None:
    (comparison,) = await measure_layouts(
        tiny_model, threads=1, rounds=1, seed=1, tell=lambda line: None, situations=[LONG]
    )
    assert comparison.refused.keys() == {Layout.PARTITIONED}
    assert len(comparison.runs[Layout.PAGED]) == 1
    text = layouts_markdown([comparison])
    assert "| does not fit | — |" in text
    assert text.splitlines()[2].endswith("| paged |")
    assert "cannot hold a long one beside a short one: a sequence holds 256 tokens at most, and 304 are needed." in text


def test_the_faster_one_is_named_where_it_always_was() -> None:
    def verdict(*ratios: float) -> str:
        comparison = Comparison(SMALL)
        comparison.runs = {
            Layout.PAGED: [Run(100 * ratio, 1) for ratio in ratios],
            Layout.PARTITIONED: [Run(100, 1) for _ in ratios],
        }
        return layouts_markdown([comparison]).splitlines()[2].split(" | ")[-1]

    assert verdict(1.1, 1.2) == "paged |"
    assert verdict(0.9, 0.8) == "partitioned |"
    assert verdict(0.9, 1.2) == "neither |"

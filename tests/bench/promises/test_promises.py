"""The measurements of what the scheduler promises, on the tiny model and for moments only."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamalane.bench.promises import urgency
from llamalane.bench.promises.asking import engine_for, percentile
from llamalane.bench.promises.overload import ClassOutcome, Overload, measure_overload
from llamalane.bench.promises.refusals import measure_refusals
from llamalane.bench.promises.tables import overload_lines, refusal_lines, urgency_lines
from llamalane.bench.promises.urgency import Urgency, measure_urgency

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_urgent_requests_are_sent_in_turns_to_the_idle_and_the_busy_engine(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TURN", 2), ("SETTLE", 0.1), ("ALONE", 0.1)):
        monkeypatch.setattr(urgency, name, value)
    told: list[str] = []
    async with engine_for(tiny_model, places=2, threads=1, cells=4096) as engine:
        result = await measure_urgency(engine, tries=4, clients=3, seed=1, tell=told.append)
        assert engine.stats().counters.parks.total() >= 4, "nobody had to give way"
    assert len(result.idle) == len(result.loaded) == 4
    assert len(result.alone) == len(result.beside) == len(told) == 2
    assert "| every place taken by level 5 | 4 |" in "\n".join(urgency_lines(result))


async def test_refusals_are_timed_while_the_lane_computes(tiny_model: Path) -> None:
    async with engine_for(tiny_model, places=2, threads=1, cells=1024, max_requests=5) as engine:
        times = await measure_refusals(engine, tries=40)
        assert engine.stats().counters.rejected["requests"] >= len(times) > 0
    assert all(seconds > 0 for seconds in times)
    assert refusal_lines([0.00001, 0.00002])[0].endswith("15 µs in the median, 20 µs at the 99th percentile.")


async def test_an_overload_is_offered_and_counted(tiny_model: Path) -> None:
    async with engine_for(tiny_model, places=2, threads=1, cells=4096, max_requests=4) as engine:
        result = await measure_overload(engine, seconds=2, seed=1)
    assert result.capacity > 0
    assert result.low.asked > result.top.asked > 0
    assert result.low.refused > 0
    for outcome in (result.unloaded, result.top, result.low):
        assert outcome.good <= outcome.answered <= outcome.asked
    assert "| level 5 |" in "\n".join(overload_lines(result))


def test_the_cost_is_what_is_lost_of_all_tokens() -> None:
    result = Urgency(idle=[0.1] * 100, loaded=[0.1] * 98 + [0.2] * 2, alone=[100.0, 200.0], beside=[144.0])
    assert result.cost == pytest.approx(0.04)
    assert (result.median_ratio, result.ratio) == (1.0, 2.0)


def test_the_share_within_the_objective_is_of_all_who_asked() -> None:
    result = Overload(2.0, 2.0, top=ClassOutcome(asked=10, good=9, answered=9, refused=1))
    assert "| level 1 in the overload | 10 | 1 | 9 | 90.0 % |" in overload_lines(result)


def test_percentiles_are_values_that_were_there() -> None:
    assert [percentile([3, 1, 2], share) for share in (0.0, 0.5, 0.99)] == [1, 2, 3]

"""The measurements of parking, of endless load and of tenants, on the tiny model and for moments only."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from llamalane.bench.promises import endless, parking, tenants
from llamalane.bench.promises.asking import config_for
from llamalane.bench.promises.endless import Endless, measure_backlog, measure_endless
from llamalane.bench.promises.parking import Parking, measure_parking
from llamalane.bench.promises.tables import endless_lines, parking_lines, tenant_lines
from llamalane.bench.promises.tenants import FEW, MANY, Asked, Shares, measure_tenants, shares_of
from llamalane.bench.promises.waits import Wait, wait_of
from llamalane.bench.promises.watching import WatchedEngine
from llamalane.ids import PlanVersion, RequestId, StepNumber
from llamalane.scheduler import Event, EventKind
from llamalane.streams import Parked, RowOutput, StepReport, StepTimes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def report(
    idle: float, *, begin: float = 0.0, parked: str = "", started: str = "", outputs: str = "", step: bool = True
) -> StepReport:
    """One step of 10 ms; each letter is a request."""
    return StepReport(
        "lane",
        StepNumber(1),
        PlanVersion(1),
        parked=tuple(Parked(RequestId(name), 5) for name in parked),
        started=tuple(map(RequestId, started)),
        outputs=tuple(RowOutput(RequestId(name), 7) for name in outputs),
        times=StepTimes(begin=begin, decode=0.008, sample=0.002, idle=idle) if step else None,
    )


def test_a_gap_counts_if_somebody_was_parked_or_resumed_in_it() -> None:
    result = Parking(asked=1, finished=1)
    result.observe(
        [
            report(0.0, started="ab"),
            report(0.001),
            report(0.004, parked="a"),
            report(0.002, started="c"),
            report(0.0, parked="b", step=False),
            report(0.005),
            report(0.006, started="a"),
            report(0.002, started="d"),
        ]
    )
    assert result.usual == [0.001, 0.002, 0.002]
    assert result.touched == [0.004, 0.005, 0.006]
    assert result.added == pytest.approx([0.002, 0.003, 0.004])
    assert result.steps == pytest.approx([0.01] * 7)


@pytest.mark.parametrize(
    ("touched", "step", "finished", "kept"),
    [(0.010, 0.01, 2, True), (0.012, 0.01, 2, False), (0.012, 0.03, 2, True), (0.010, 0.01, 1, False)],
)
def test_parking_may_add_ten_milliseconds_or_half_a_step(
    touched: float, step: float, finished: int, kept: bool
) -> None:
    result = Parking(asked=2, finished=finished, usual=[0.001], touched=[0.001, touched], steps=[step])
    assert result.kept is kept
    assert ("**not kept**" in parking_lines([(2, "swap", result)])[4]) is not kept


async def test_more_requests_are_let_in_than_there_are_cells_for(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "REQUESTS", 12)
    result = await measure_parking(tiny_model, places=8, threads=1, times=4, park="swap", seed=1, tell=lambda _: None)
    assert result.finished == result.asked == 12
    assert result.parks.keys() == {"swap"}
    assert len(result.touched) >= result.parks["swap"] > 0
    assert "| 1/4 | swap | 12 of 12 |" in parking_lines([(4, "swap", result)])[4]


def events(text: str) -> list[Event]:
    """One for each word: what happened, by its first letter, to a request, each a second after the other."""
    kinds = {kind.value[0]: kind for kind in (EventKind.PARKED, EventKind.ENDED)}
    kinds |= {"+": EventKind.ACCEPTED, "!": EventKind.ADMITTED}
    return [Event(float(second), kinds[word[0]], word[1:]) for second, word in enumerate(text.split())]


def test_a_wait_is_counted_in_admissions() -> None:
    wait = wait_of("x", events("+a !a +b +c +x ec !b +d pa !a !d !x +e !e"))
    assert wait == Wait(older={"a", "b", "c"}, admissions=4, fewest=0, seconds=7.0)
    assert wait.bound == 40
    with pytest.raises(ValueError, match="never admitted"):
        wait_of("x", events("+x +a !a"))


async def test_the_least_urgent_are_waited_for(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SETTLE", 0.2), ("EVERY", 0.3), ("BACKLOG", 30)):
        monkeypatch.setattr(endless, name, value)
    async with WatchedEngine(config_for(tiny_model, places=2, threads=1, cells=4096)) as engine:
        result = await measure_endless(engine, clients=6, seconds=1, seed=1)
        await measure_backlog(engine, result, tries=2, seed=1, tell=lambda _: None)
    assert result.finished == result.asked == 3
    assert result.fewest >= 1
    assert result.kept
    assert len(result.idle) == len(result.behind) == 2
    lines = "\n".join(endless_lines(result))
    assert "3 of 3 finished" in lines
    assert lines.count("| 2 |") == 2


def test_who_waits_too_long_breaks_the_promise() -> None:
    waits = [Wait(admissions=10, fewest=3), Wait(admissions=11, fewest=2)]
    result = Endless(asked=2, finished=2, waits=waits, idle=[0.1], behind=[0.2])
    assert result.fewest == 2
    assert (
        "bounds were from 10 to 10 admissions, of which at most 110 % were needed: **not kept**"
        in (endless_lines(result)[0])
    )


def test_service_counts_while_both_tenants_wait() -> None:
    asked = {name: Asked(MANY if name < "n" else FEW, 10) for name in "abcxyz"}
    shares = shares_of(
        asked,
        events("+a +b +c +x !a +y !b !x !y !c"),
        [report(0.0, begin=begin, outputs="abx") for begin in (4.5, 6.5, 8.5)],
    )
    assert shares.service == {MANY: 10 + 10 + 8, FEW: 10 + 10 + 4}
    assert shares.seconds == pytest.approx(5)
    assert shares.largest == 24


def test_the_index_is_one_for_equal_shares_and_half_for_everything() -> None:
    assert Shares(service=Counter({MANY: 70, FEW: 70})).index == 1
    assert Shares(service=Counter({MANY: 70, FEW: 0})).index == 0.5
    assert "**not kept**" in tenant_lines(Shares(service=Counter({MANY: 70, FEW: 30})))[5]


async def test_tenants_ask_twenty_to_one(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SETTLE", 0.2), ("CLIENTS", 4)):
        monkeypatch.setattr(tenants, name, value)
    async with WatchedEngine(config_for(tiny_model, places=2, threads=1, cells=4096)) as engine:
        result = await measure_tenants(engine, seconds=1.5, seed=1)
    assert result.seconds > 0.5
    assert result.service[MANY] > 0
    assert result.service[FEW] > 0
    assert result.largest <= result.bound
    assert 0.5 < result.index <= 1

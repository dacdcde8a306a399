"""The soak: what it finds, and that it finds nothing where nothing is lost."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from llamalane.api import create_app
from llamalane.bench.soak.asking import Ask, Asker
from llamalane.bench.soak.clients import Client, Manner, Tally
from llamalane.bench.soak.measuring import SoakPlan, SoakReport, soak, soak_markdown
from llamalane.bench.soak.watching import Holding, Sample, slope
from llamalane.errors import RequestFailedError, RequestShedError
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.serving import served

IDLE = Holding(files=9, threads=4, places=8, free=8, waiting=0, running=0, promised=0, host=0, served=100)
PLAN = SoakPlan(model=Path("tiny.gguf"), embedder=None, threads=1, seconds=1.0, connections=8, vanishing=0.5, seed=1)


def report(**fields: object) -> SoakReport:
    samples = tuple(Sample(requests=number, served=number, memory=1000) for number in range(3))
    whole = SoakReport(
        plan=PLAN,
        usual=10.0,
        rate=60.0,
        tally=Tally(),
        samples=samples,
        growth=0.0,
        growth_served=0.0,
        before=IDLE,
        after=IDLE,
        whole=True,
    )
    return dataclasses.replace(whole, **fields)  # type: ignore[arg-type]


def test_a_server_that_gives_everything_back_passes(tiny_model: Path, tiny_encoder: Path) -> None:
    plan = dataclasses.replace(
        PLAN, model=tiny_model, embedder=tiny_encoder, seconds=2.0, connections=40, usual_seconds=0.5
    )
    told: list[str] = []
    result = anyio.run(partial(soak, plan, told.append))
    assert result.tally.faults == {}
    assert result.after.idle
    assert result.whole
    assert result.tally.requests > 20
    assert result.after.served > 10
    assert set(result.tally.manners) == set(Manner)
    assert "requests/s while nobody waits" in told[0]
    assert "file descriptors" in soak_markdown(result)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"after": dataclasses.replace(IDLE, free=7)}, "something is still held"),
        ({"after": dataclasses.replace(IDLE, promised=1)}, "something is still held"),
        ({"after": dataclasses.replace(IDLE, files=10)}, "there are 10 files, and were 9"),
        ({"after": dataclasses.replace(IDLE, threads=5)}, "there are 5 threads, and were 4"),
        ({"whole": False}, "a prompt as long as all KV cells"),
        ({"growth_served": 1001.0}, "memory grows by 1.00 MB in 1,000 requests"),
    ],
)
def test_what_is_lost_is_a_problem(fields: dict[str, object], problem: str) -> None:
    assert report().problems == []
    assert "Nothing is lost." in soak_markdown(report())
    [found] = report(**fields).problems
    assert found.startswith(problem)
    assert problem in soak_markdown(report(**fields))


class OneAsk(Asker):
    """Asks for the same again and again."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def draw(self) -> Ask:
        return self._ask


@pytest.mark.parametrize(
    ("play", "fault"),
    [
        (Play(), None),
        (Play((), error=RequestFailedError("no")), "stream: 500"),
        (Play(["one"], error=RequestShedError(1.0)), None),
        (Play(["one"], error=RequestFailedError("no")), "stream: the stream was cut off"),
    ],
)
def test_an_answer_that_is_not_allowed_is_a_fault(play: Play, fault: str | None) -> None:
    ask = Ask("stream", "/v1/completions", {"prompt": "x", "stream": True}, frozenset({200, 429}))
    tally = Tally()
    with served(create_app(as_engine(ScriptedEngine([play])))) as url:
        parts = urlsplit(url)
        client = Client((parts.hostname or "", parts.port or 0), OneAsk(ask), tally, seed=1)
        anyio.run(partial(client.ask, vanishing=0.0))
    assert tally.requests == 1
    faults = list(tally.faults)
    assert [one.startswith(fault) for one in faults] == [True] if fault else faults == []


def test_growth_is_that_of_most_stretches() -> None:
    def samples(memory: list[int]) -> list[Sample]:
        return [Sample(requests=10 * number, served=number, memory=one) for number, one in enumerate(memory)]

    assert slope(samples([1000] * 10 + [9000] * 10)) == pytest.approx(0)
    leaking = samples([1000 + 50 * number for number in range(20)])
    assert slope(leaking) == pytest.approx(5)
    assert slope(leaking, served=True) == pytest.approx(50)

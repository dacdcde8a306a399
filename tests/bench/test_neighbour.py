"""The benchmark beside a busy process: its order, its tables, and the busy process itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from llamalane.bench import neighbour
from llamalane.bench.neighbour import (
    Contestant,
    NeighbourPlan,
    NeighbourResult,
    NeighbourRound,
    busy_process,
    measure_neighbour,
    neighbour_markdown,
)
from llamalane.bench.peers.kinds import Peer, Setup
from llamalane.bench.server import Server
from llamalane.bench.workload import Span, Workload
from llamalane.errors import LlamalaneError
from llamalane.streams.llama.library import SPIN_COUNT
from tests.bench.test_report import MACHINE

PLAN = NeighbourPlan(
    setup=Setup(model=Path("/models/small.gguf"), places=8, threads=2, cells=4096),
    workload=Workload(words=Span(2, 6), output_tokens=Span(3, 9)),
    clients=2,
    rounds=2,
    seconds=1.0,
    seed=1,
)


def result_of(rates: Mapping[Contestant, list[tuple[float, float]]]) -> NeighbourResult:
    rounds = [
        NeighbourRound(contestant=contestant, round=number, alone=alone, beside=beside, neighbour=0.9, errors=0)
        for contestant, pairs in rates.items()
        for number, (alone, beside) in enumerate(pairs, 1)
    ]
    return NeighbourResult(plan=PLAN, machine=MACHINE, builds={"llamalane": "AVX2"}, rounds=tuple(rounds))


def test_the_table_tells_what_is_left_and_how_many_times_as_much_llamalane_has() -> None:
    text = neighbour_markdown(
        result_of(
            {
                Contestant.LLAMALANE: [(100, 60), (90, 54)],
                Contestant.DEFAULT: [(100, 20), (100, 27)],
                Contestant.BOUNDED: [(100, 0), (0, 30)],
            }
        )
    )
    rows = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in text.splitlines() if "to" in line}
    ours, theirs, bounded = (rows[one.value] for one in Contestant)
    assert ours[1:4] == ["95.0 (90.0 to 100.0)", "57.0 (54.0 to 60.0)", "60% (60% to 60%)"]
    assert theirs[4] == "2.50 (2.00 to 3.00)"
    assert bounded[3:5] == ["0% (0% to 0%)", "1.80 (1.80 to 1.80)"]
    assert "| 2 | llama-server | 100.0 | 27.0 | 0.90 | 0 |" in text


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_servers_must_have_their_defaults(name: str) -> None:
    machine = dataclasses.replace(MACHINE, settings={name: "1"})
    with pytest.raises(LlamalaneError, match=f"{name} is set"):
        measure_neighbour(PLAN, machine, lambda _: None)


@pytest.mark.parametrize(
    ("executable", "other"), [(None, Peer.XLLAMACPP), (Path("/bin/llama-server"), Peer.LLAMA_SERVER)]
)
def test_another_server_begins_in_each_round(
    monkeypatch: pytest.MonkeyPatch, executable: Path | None, other: Peer
) -> None:
    started: list[tuple[Peer, Mapping[str, str]]] = []

    @contextmanager
    def serve(peer: Peer, setup: Setup, environment: Mapping[str, str], *, program: Path | None) -> Iterator[Server]:
        started.append((peer, environment))
        assert program == executable
        raise LookupError
        yield

    def measure(plan: NeighbourPlan, contestant: Contestant, number: int, seed: int) -> NeighbourRound:
        with pytest.raises(LookupError):
            measured(plan, contestant, number, seed)
        return NeighbourRound(contestant=contestant, round=number, alone=seed, beside=1, neighbour=1, errors=0)

    measured = neighbour._measure
    monkeypatch.setattr(neighbour, "serve", serve)
    monkeypatch.setattr(neighbour, "_measure", measure)
    monkeypatch.setattr(neighbour, "build_of", lambda peer, program: peer.value)
    plan = dataclasses.replace(PLAN, llama_server=executable)
    result = measure_neighbour(plan, MACHINE, lambda _: None)
    assert result.builds.keys() == {"llamalane", other.value}
    bounded = {"GOMP_SPINCOUNT": SPIN_COUNT}
    first = [(Peer.LLAMALANE, {}), (other, {}), (other, bounded)]
    assert started == [*first, *first[1:], first[0]]
    assert {one.alone for one in result.rounds if one.round == 1}.isdisjoint(
        one.alone for one in result.rounds if one.round == 2
    )


def test_the_busy_process_ends_with_its_block() -> None:
    before = set(psutil.Process().children())
    with busy_process() as got:
        (process,) = set(psutil.Process().children()) - before
        assert got() >= 0
    assert not process.is_running()

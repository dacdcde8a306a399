"""The floor: that everybody is measured in turn on the tiny model, and how it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from llamalane.bench.floor.contestants import Contestant, Measured
from llamalane.bench.floor.measuring import measure_floor, take_turns
from llamalane.bench.floor.plan import ENGINE, SERVER, FloorPlan, FloorReport, FloorResult, Run, floor_name
from llamalane.bench.floor.probes import PARTS, Split
from llamalane.bench.floor.raw_loop import BareContext, RawLoop
from llamalane.bench.floor.raw_process import RawRun, run_in_process
from llamalane.bench.floor.tables import floor_markdown
from llamalane.bench.floor.times import LaneTimes
from llamalane.bench.workload import Span, Workload
from llamalane.errors import LlamalaneError
from llamalane.streams.llama import ContextOptions, Model, ModelOptions
from tests.bench.test_report import MACHINE

SHORT = Workload(words=Span(2, 4), output_tokens=Span(3, 6))
LANE = LaneTimes(seconds=10.0, steps=200, tokens=1600, decode=9.5, sample=0.3, idle=0.1)


def plan_for(model: Path) -> FloorPlan:
    return FloorPlan(
        model=model,
        threads=1,
        workload=SHORT,
        sequences=(2,),
        chunks=(64,),
        http=True,
        split=True,
        rounds=1,
        seconds=0.5,
        warm_up=0.1,
        seed=1,
    )


def test_floor_engine_and_server_are_measured(tiny_model: Path) -> None:
    lines: list[str] = []
    plan = plan_for(tiny_model)
    (result,) = anyio.run(measure_floor, plan, lines.append)
    assert [one.what for one in result.runs] == [floor_name(64), ENGINE, SERVER]
    assert all(one.lane.tokens > 0 and one.lane.steps > 0 and one.lane.decode > 0 for one in result.runs)
    assert result.splits.keys() == {ENGINE, SERVER}
    for name, split in result.splits.items():
        assert split.loop > 0
        assert split.parts["scheduling"] > 0
        assert (split.parts["JSON"] > 0) is (name == SERVER)
    assert len(lines) == 5
    assert "| 2 | engine |" in floor_markdown(FloorReport(plan=plan, machine=MACHINE, results=(result,)))


class Noted:
    """Takes note of how it is measured."""

    def __init__(self, name: str, asked: list[tuple[str, int, bool]]) -> None:
        self.name = name
        self._asked = asked

    async def measure(self, seed: int, *, probed: bool = False) -> Measured:
        self._asked.append((self.name, seed, probed))
        return Measured(50.0, Split(lane=LANE, interpreter=None, loop=0.0, parts={}))


def test_whoever_came_last_in_a_round_comes_first_in_the_next(tiny_model: Path) -> None:
    asked: list[tuple[str, int, bool]] = []
    plan = replace(plan_for(tiny_model), rounds=3)
    contestants: list[Contestant] = [Noted(name, asked) for name in (floor_name(8), ENGINE, SERVER)]
    anyio.run(take_turns, plan, 2, contestants, lambda _: None)
    names = [name for name, _, _ in asked]
    assert names[:6] == [floor_name(8), ENGINE, SERVER, SERVER, ENGINE, floor_name(8)]
    assert [seed for _, seed, _ in asked[:9]] == [2, 2, 2, 3, 3, 3, 4, 4, 4], "a round's prompts are the same for all"
    assert asked[9:] == [(ENGINE, 1, True), (SERVER, 1, True)]


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_the_loop_computes_every_prompt_and_every_token_once(tiny_model: Path, chunk: int) -> None:
    options = ContextOptions(cells=512, sequences=2, max_step_tokens=64, micro_batch=64, threads=1, partitioned=True)
    computed: list[tuple[int, int]] = []

    class Watched(BareContext):
        def decode(self, batch):  # type: ignore[no-untyped-def]
            for sequence, start, end in batch.parts:
                assert start == 0 or start == self.length(sequence), "a token was left out"
                assert end - start <= max(chunk, 1)
                computed.append((start, end))
            super().decode(batch)

    with Model(ModelOptions(path=tiny_model)) as model:
        context = Watched(model, options)
        times = RawLoop(model, context, SHORT, places=2, chunk=chunk, seed=1, limit=256).run(0.2, 0.0)
        context.close()
    assert times.tokens > 10
    assert sum(start == 0 for start, _ in computed) > 2, "no second prompt was begun"
    assert times.decode + times.sample + times.idle == pytest.approx(times.seconds)


def test_a_loop_whose_process_fails_says_why(tmp_path: Path) -> None:
    options = ContextOptions(cells=512, sequences=2, max_step_tokens=64, micro_batch=64, threads=1)
    raw = RawRun(
        model=tmp_path / "no.gguf",
        options=options,
        workload=SHORT,
        chunk=8,
        seed=1,
        limit=256,
        seconds=0.1,
        warm_up=0.0,
    )
    with pytest.raises(LlamalaneError, match=r"(?s)the bare loop failed: .*no\.gguf"):
        anyio.run(run_in_process, raw)


def run(what: str, number: int, rate: float, others: float = 0.0) -> Run:
    return Run(what=what, round=number, tokens_per_second=rate, lane=LANE, others=others)


def result_of(*runs: Run) -> FloorResult:
    split = Split(lane=LANE, interpreter=0.05, loop=0.4, parts=dict.fromkeys(PARTS, 0.05))
    return FloorResult(sequences=8, runs=runs, splits={ENGINE: split, SERVER: replace(split, interpreter=None)})


QUIET = (run(floor_name(8), 1, 90.0), run(floor_name(64), 1, 100.0), run(ENGINE, 1, 95.0), run(SERVER, 1, 93.0))


def test_a_share_is_taken_of_the_quickest_floor_of_its_round() -> None:
    others = (run(SERVER, 2, 45.0), run(ENGINE, 2, 40.0), run(floor_name(64), 2, 40.0), run(floor_name(8), 2, 50.0))
    result = result_of(*QUIET, *others)
    assert result.ratios(ENGINE) == [0.95, 0.8]
    assert result.ratios(SERVER) == [0.93, 0.9]


def test_rounds_in_which_others_were_at_work_do_not_count() -> None:
    disturbed = [replace(one, round=2, tokens_per_second=10.0) for one in QUIET]
    disturbed[0] = replace(disturbed[0], others=0.5)
    result = result_of(*QUIET, *disturbed)
    assert result.quiet == [1]
    assert result.ratios(ENGINE) == [0.95]
    assert len(result_of(*disturbed).ratios(ENGINE)) == 1, "all count where none was quiet"


def test_each_has_its_line_and_its_time_is_split(tiny_model: Path) -> None:
    noisy = replace(QUIET[0], round=2, others=1.0)
    result = result_of(*QUIET, noisy, *(replace(one, round=2) for one in QUIET[1:]))
    text = floor_markdown(FloorReport(plan=plan_for(tiny_model), machine=MACHINE, results=(result,)))
    lines = text.splitlines()
    assert (
        "| 8 | engine | 95.0 (95.0 to 95.0) | 0.950 (0.950 to 0.950) | 1.0% | 0.50 (0.50 to 0.50) | 1.50 | 50.0 |"
        in lines
    )
    assert "| lane: in llama.cpp | 94.50% | 95.00% |" in lines
    assert "| lane: waiting for the interpreter after it | 0.50% | not known |" in lines
    assert "| event loop: sockets, framework, all else | 2.00% | 2.00% |" in lines
    assert "in 1 of 2 rounds of 8 sequences" in lines[-1]
    assert "They do not count." in lines[-1]

"""What a step costs: that each situation is measured in every round, and how it is told."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from llamalane.bench.floor.probes import Split
from llamalane.bench.floor.times import LaneTimes
from llamalane.bench.step_costs import Situation, StepPlan, StepRound, measure_steps, steps_markdown
from llamalane.errors import LlamalaneError
from llamalane.scheduler import Engine

ALONE, CROWDED = Situation(1), Situation(2, 300)


def plan(model: Path, *situations: Situation) -> StepPlan:
    return StepPlan(
        model=model, threads=1, situations=situations or (ALONE, CROWDED), rounds=2, seconds=0.3, warm_up=0.1
    )


def test_each_situation_is_measured_in_every_round(tiny_model: Path) -> None:
    told: list[str] = []
    rounds = anyio.run(measure_steps, plan(tiny_model), told.append)
    assert [(one.situation, one.round) for one in rounds] == [(ALONE, 1), (CROWDED, 1), (CROWDED, 2), (ALONE, 2)]
    assert len(told) == 4
    for one in rounds:
        assert min(one.decode, one.sampling, one.between, one.loop) > 0
        assert 0 < one.tokens <= one.situation.sequences


def test_requests_wait_while_others_run(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[int] = []
    resume = Engine.resume_lane

    def look(engine: Engine, name: str) -> None:
        waiting.append(engine.stats().waiting_tokens)
        resume(engine, name)

    monkeypatch.setattr(Engine, "resume_lane", look)
    anyio.run(measure_steps, plan(tiny_model), lambda line: None)
    alone, crowded, *_ = waiting
    assert crowded > alone + 300


def test_a_lane_that_fails_is_told(tiny_model: Path) -> None:
    with pytest.raises(LlamalaneError):
        anyio.run(measure_steps, plan(tiny_model.with_name("missing.gguf")), lambda line: None)


def test_a_step_s_cost_is_all_but_llama_cpp_s_work() -> None:
    def measured(number: int, idle: float) -> StepRound:
        lane = LaneTimes(seconds=1.0, steps=100, tokens=800, decode=0.9, sample=0.02, idle=idle)
        return StepRound(CROWDED, number, Split(lane=lane, interpreter=None, loop=0.03, parts={}))

    text = steps_markdown(plan(Path("small.gguf"), CROWDED), [measured(1, 0.01), measured(2, 0.03)])
    assert "| 2 | 300 | 8.0 | 9000 | 200 | 200 | 300 | 700 (600 to 800) |" in text

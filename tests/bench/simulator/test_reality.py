"""Calibration and comparison, on a real engine with a tiny model. What they measure decides nothing here."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from llamalane.bench.simulator.calibration import calibrate
from llamalane.bench.simulator.comparison import run_real
from llamalane.bench.simulator.measured import DEFAULT_SPEED
from llamalane.bench.simulator.measures import Objective, measure
from llamalane.bench.simulator.request import SimulatedRequest
from llamalane.bench.simulator.study import POLICIES, machine_of
from llamalane.scheduler import (
    EngineConfig,
    KVConfig,
    LaneConfig,
    ModelConfig,
    QueueConfig,
    SchedulerConfig,
    StreamsConfig,
)
from tests.bench.simulator.building import Arrival, requests, simulate

SLO = Objective(first_token=1.0, inter_token=0.5)


def config_for(model: Path, *, places: int = 3, max_requests: int = 100) -> EngineConfig:
    return EngineConfig(
        models=[ModelConfig(path=model)],
        streams=StreamsConfig(lanes=[LaneConfig(places=places, threads=1)], max_step_tokens=64),
        kv=KVConfig(budget=256 * places),
        scheduler=SchedulerConfig(queue=QueueConfig(max_requests=max_requests)),
    )


def test_rows_and_chunks_are_measured_short_and_long(tiny_model: Path) -> None:
    told: list[str] = []
    speed = calibrate(config_for(tiny_model), told.append, repeats=2)
    decoding = {point.tokens for point in speed.points if point.decodes}
    assert decoding == {1, 2, 3}
    cells = [point.cells for point in speed.points if point.decodes and point.tokens == 1]
    assert max(cells) > 4 * min(cells)
    chunks = [point for point in speed.points if not point.decodes]
    assert {point.tokens for point in chunks} >= {2, 4, 8, 16, 32, 64}
    assert max(point.cells for point in chunks if point.tokens == 8) > 8 * 128
    assert all(point.seconds > 0 for point in speed.points)
    assert len(told) == 1


def test_a_single_row_is_measured_short_and_long(tiny_model: Path) -> None:
    speed = calibrate(config_for(tiny_model, places=1), lambda line: None, repeats=1)
    cells = [point.cells for point in speed.points if point.decodes]
    assert max(cells) > 4 * min(cells)


def arrivals() -> list[SimulatedRequest]:
    listed = requests([Arrival(at=0, level=1, prompt=10, output=3), Arrival(at=5, level=3, prompt=40, output=6)])
    (answer,) = requests([Arrival(at=0, level=3, prompt=60, output=4)])
    listed[1].session = answer.session = "talk"
    listed[1].next_turn = answer
    return listed


def test_the_same_requests_run_for_real_and_simulated(tiny_model: Path) -> None:
    config = config_for(tiny_model)
    machine = machine_of(config, DEFAULT_SPEED)
    real = anyio.run(run_real, config, arrivals())
    simulated = simulate(machine, POLICIES["ours"].make(config), arrivals())
    for outcomes in (real.outcomes, simulated):
        measures = measure(outcomes, SLO)
        assert [(level.level, level.requests) for level in measures.levels] == [(1, 1), (3, 2)]
        assert measures.cached_share == pytest.approx(45 / 110)  # the second turn finds 40 + 6 − 1 tokens


def test_the_steps_of_a_real_run_tell_how_slow_the_machine_was(tiny_model: Path) -> None:
    config = config_for(tiny_model)
    listed = requests([Arrival(at=0, prompt=10, output=3), Arrival(at=5, prompt=40, output=6)])
    real = anyio.run(run_real, config, listed)
    # Every token is computed once, but for the last of each output.
    assert sum(part.tokens for step in real.steps for part in step.parts) == (10 + 2) + (40 + 5)
    machine = machine_of(config, DEFAULT_SPEED)
    slowness = real.slowness(machine, DEFAULT_SPEED)
    assert slowness > 0
    assert real.slowness(machine, DEFAULT_SPEED.scaled(slowness)) == pytest.approx(1.0, rel=0.001)


def test_what_the_real_queue_refuses_is_counted(tiny_model: Path) -> None:
    config = config_for(tiny_model, places=1, max_requests=1)
    many = requests([Arrival(at=0, level=2, prompt=10, output=20)] * 6)
    measures = measure(anyio.run(run_real, config, many).outcomes, SLO)
    assert measures.requests + measures.refused == 6
    assert measures.refused >= 1

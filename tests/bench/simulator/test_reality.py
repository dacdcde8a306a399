"""Calibration and comparison, on a real engine with a tiny model. What they measure decides nothing here."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamalane.bench.simulator.calibration import calibrate
from llamalane.bench.simulator.comparison import compare
from llamalane.bench.simulator.measures import Objective
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


def test_every_shape_of_a_step_is_measured(tiny_model: Path) -> None:
    told: list[str] = []
    speed = calibrate(config_for(tiny_model), told.append, prompts=(8, 32), repeats=2)
    shapes = [(point.decode_rows, point.prompt_tokens) for point in speed.points]
    assert shapes == [(0, 8), (0, 32), (1, 0), (1, 8), (1, 32), (2, 0), (2, 8), (2, 32), (3, 0)]
    assert all(point.seconds > 0 for point in speed.points)
    assert [line.partition(" ")[0] for line in told] == ["0", "1", "2", "3"]


def test_shapes_that_fit_no_step_are_left_out(tiny_model: Path) -> None:
    speed = calibrate(config_for(tiny_model, places=1), lambda line: None, prompts=(8, 64, 100), repeats=1)
    assert [(point.decode_rows, point.prompt_tokens) for point in speed.points] == [(0, 8), (0, 64), (1, 0)]


def arrivals() -> list[SimulatedRequest]:
    listed = requests([Arrival(at=0, level=1, prompt=10, output=3), Arrival(at=5, level=3, prompt=40, output=6)])
    (answer,) = requests([Arrival(at=0, level=3, prompt=60, output=4)])
    listed[1].session = answer.session = "talk"
    listed[1].next_turn = answer
    return listed


def test_the_same_requests_run_for_real_and_simulated(tiny_model: Path) -> None:
    config = config_for(tiny_model)
    speed = calibrate(config, lambda line: None, prompts=(8, 32), repeats=1)
    simulated = simulate(machine_of(config, speed), POLICIES["ours"].make(config), arrivals())
    comparison = compare(config, arrivals(), simulated, SLO)
    for measures in (comparison.real, comparison.simulated):
        assert [(level.level, level.requests) for level in measures.levels] == [(1, 1), (3, 2)]
        assert measures.cached_share == pytest.approx(45 / 110)  # the second turn finds 40 + 6 − 1 tokens
    assert [(real.level, other.level) for real, other in comparison.pairs] == [(1, 1), (3, 3)]


def test_what_the_real_queue_refuses_is_counted(tiny_model: Path) -> None:
    config = config_for(tiny_model, places=1, max_requests=1)
    many = requests([Arrival(at=0, level=2, prompt=10, output=20)] * 6)
    speed = calibrate(config, lambda line: None, prompts=(8,), repeats=1)
    simulated = simulate(machine_of(config, speed), POLICIES["ours"].make(config), requests([Arrival(at=0)]))
    comparison = compare(config, many, simulated, SLO)
    assert comparison.real.requests + comparison.real.refused == 6
    assert comparison.real.refused >= 1

"""The urgent benchmark, against the real server with a tiny model."""

from __future__ import annotations

from pathlib import Path

import yaml

from llamalane.bench.machine import describe_machine
from llamalane.bench.peers.kinds import Peer, Setup
from llamalane.bench.urgent import UrgentPlan, configuration, measure_urgent
from llamalane.bench.workload import Span, Workload
from llamalane.scheduler.config import EngineConfig

SHORT = Workload(words=Span(2, 5), output_tokens=Span(4, 12))


def setup(model: Path) -> Setup:
    return Setup(model=model, places=2, threads=1, cells=1024)


def test_the_configuration_reserves_places(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "urgent.yaml"
    path.write_text(yaml.safe_dump(configuration(setup(tiny_model), 1)))
    config = EngineConfig.from_yaml(path)
    assert config.models[0].path == tiny_model
    assert (config.streams.lanes[0].places, config.streams.lanes[0].threads) == (2, 1)
    assert config.kv.budget == 1024
    assert config.scheduler.reserve == {"interactive": 1}


def test_urgent_requests_are_measured_idle_and_under_load(tiny_model: Path) -> None:
    plan = UrgentPlan(
        peer=Peer.LLAMALANE,
        setup=setup(tiny_model),
        reserve=1,
        clients=3,
        background=SHORT,
        urgent=SHORT,
        tries=2,
        seed=1,
        pauses=(0.0, 0.1),
    )
    told: list[str] = []
    result = measure_urgent(plan, describe_machine(), lambda name, wait: told.append(name))
    assert told == ["first"] * 3 + ["idle"] * 2 + ["loaded"] * 2
    assert (len(result.idle), len(result.loaded)) == (2, 2)
    assert min(result.idle + result.loaded) > 0
    assert result.background.requests >= 3
    assert result.background.errors == {}
    assert result.background.wrong_length == 0

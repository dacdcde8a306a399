"""The fan-out benchmark, against the real servers with a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamalane.bench.fanout import (
    OURS,
    Contender,
    FanoutPlan,
    FanoutResult,
    Pass,
    Round,
    configuration,
    fanout_markdown,
    measure_fanout,
)
from llamalane.bench.peers.kinds import Setup
from llamalane.errors import LlamalaneError
from llamalane.scheduler import EngineConfig


def plan_for(model: Path, **options: int) -> FanoutPlan:
    values = {
        "documents": 2,
        "questions": 2,
        "rounds": 2,
        "seed": 1,
        "document_words": 30,
        "question_words": 3,
        **options,
    }
    return FanoutPlan(setup=Setup(model=model, places=2, threads=1, cells=1024), output_tokens=4, **values)


def test_the_configuration_names_the_layout(tiny_model: Path) -> None:
    for contender, layout in zip(OURS, ("paged", "partitioned"), strict=True):
        config = EngineConfig.model_validate(configuration(plan_for(tiny_model).setup, contender))
        assert config.kv.layout == layout
        assert (config.kv.budget, config.streams.lanes[0].places, config.streams.lanes[0].threads) == (1024, 2, 1)


def test_every_server_is_measured_in_every_round(tiny_model: Path) -> None:
    pytest.importorskip("xllamacpp")
    told: list[str] = []
    result = measure_fanout(plan_for(tiny_model), told.append)
    assert len(told) == 2 * len(Contender)
    order = [line.partition(", ")[2].partition(":")[0] for line in told]
    assert order[0] != order[len(Contender)], "another one begins the second round"
    for contender in Contender:
        rounds = result.rounds[contender]
        assert len(rounds) == 2
        assert all(min(one.cold.seconds, one.repeated.seconds) > 0 for one in rounds)
        assert all(one.repeated.cached > 0.5 for one in rounds)
    assert all(one.cold.cached > 0.3 for one in result.rounds[Contender.PAGED]), (
        "the second question shares the document"
    )


def test_answers_that_fail_are_told(tiny_model: Path) -> None:
    pytest.importorskip("xllamacpp")
    with pytest.raises(LlamalaneError, match="a request failed: HTTP 400"):
        measure_fanout(plan_for(tiny_model, document_words=400), lambda line: None)


def test_the_tables_tell_ratios_and_quartiles(tiny_model: Path) -> None:
    result = FanoutResult(plan=plan_for(tiny_model, rounds=3), builds={"llamalane": "CPU: AVX2"})
    for contender, factor in zip(Contender, (1.0, 2.0, 4.0), strict=True):
        result.rounds[contender] = [Round(Pass(factor * (1 + number), 0.5), Pass(factor, 1)) for number in range(3)]
    text = fanout_markdown(result)
    assert "| 2 | 2.00 (50 % cached) | 4.00 (50 % cached) | 8.00 (50 % cached) | 4.00 | 2.00 |" in text
    assert "Documents new, llamalane, paged: 4.00 times as fast, quartiles 4.00 to 4.00." in text
    assert "Documents again, llamalane, partitioned: 2.00 times as fast" in text

"""What choosing a token costs: that every chain is measured on rows as they are meant to be, and how it is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llamalane.bench.real_logits import nucleus, real_rows, stretched, with_nucleus
from llamalane.bench.sampling_costs import CASES, SamplingCosts, measure_sampling, sampling_markdown


def test_every_chain_is_measured_for_every_vocabulary(tiny_model: Path) -> None:
    lines: list[str] = []
    costs = measure_sampling(tiny_model, rounds=2, vocabularies=(None, 3000), cases=CASES[:4], tell=lines.append)
    assert [(cost.vocabulary, cost.case) for cost in costs] == [
        (size, case.name) for size in (260, 3000) for case in CASES[:4]
    ]
    for cost in costs:
        assert len(cost.ours) == len(cost.chain) == len(cost.list) == 2
        assert min(*cost.ours, *cost.chain, *cost.list) > 0
    assert len(lines) == len(costs)


def test_rows_are_a_models_own_and_stay_so_when_they_are_stretched(tiny_model: Path) -> None:
    rows = real_rows(tiny_model, 3, seed=1)
    assert rows.shape == (3, 260)
    assert len(np.unique(rows, axis=0)) == 3
    longer = stretched(rows, 1000, seed=1)
    assert longer.shape == (3, 1000)
    assert np.abs(longer[:, :260] - rows).max() < 2, "noise alone"
    assert (longer[:, 780:1000].mean(axis=1) < longer[:, :220].mean(axis=1) - 3).all(), "later copies are less likely"


@pytest.mark.parametrize("size", [5, 40])
def test_rows_are_scaled_until_so_many_tokens_reach_top_p(size: int) -> None:
    rows = np.random.default_rng(1).gumbel(0, 1, (2, 500)).astype(np.float32)
    assert [nucleus(row, 0.95) for row in with_nucleus(rows, 0.95, size)] == [pytest.approx(size, abs=1)] * 2


def test_each_chain_has_its_line() -> None:
    cost = SamplingCosts(
        case="greedy", vocabulary=49_152, ours=(5e-6, 4e-6, 8e-6), chain=(30e-6,) * 3, list=(10e-6, 10e-6, 40e-6)
    )
    line = sampling_markdown([cost]).splitlines()[2]
    assert line == "| 49,152 | greedy | 5 (4 to 8) | 40 (40 to 70) | 10 (10 to 40) | 8.8 (8.0 to 10.0) |"

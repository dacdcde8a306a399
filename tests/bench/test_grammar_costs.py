"""What grammars cost: that each number of rows is measured, and how it is told."""

from __future__ import annotations

from pathlib import Path

import anyio

from llamalane.bench.grammar_costs import GrammarCosts, grammars_markdown, measure_grammars


def test_each_number_of_rows_is_measured_in_every_round(tiny_model: Path) -> None:
    lines: list[str] = []

    async def measure() -> list[GrammarCosts]:
        return await measure_grammars(tiny_model, rounds=2, tokens=5, constrained=(0, 8), tell=lines.append)

    costs = anyio.run(measure)
    assert [cost.constrained for cost in costs] == [0, 8]
    assert all(len(cost.tokens_per_second) == len(cost.sample_ms) == 2 for cost in costs)
    assert all(min(*cost.tokens_per_second, *cost.sample_ms) > 0 for cost in costs)
    assert len(lines) == 4


def test_each_number_of_rows_has_its_line() -> None:
    cost = GrammarCosts(constrained=4, tokens_per_second=(100.4, 90.0, 120.0), sample_ms=(0.5, 0.25, 1.0))
    assert grammars_markdown([cost]).splitlines()[2] == "| 4 | 100 (90 to 120) | 0.50 (0.25 to 1.00) |"

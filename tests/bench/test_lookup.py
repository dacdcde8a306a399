"""What drafts bring: that both engines say the same, and how it is told."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from llamalane.bench.lookup import LookupGain, LookupPlan, configuration, lookup_markdown, measure_lookup
from llamalane.errors import LlamalaneError

MODEL = Path("model.gguf")


def test_the_engines_differ_in_nothing_but_drafts() -> None:
    plan = LookupPlan(model=MODEL, threads=2, counts=(1, 3))
    plain, drafting = (configuration(plan, draft_tokens=count) for count in (0, 8))
    assert (drafting.streams.lookup.draft_tokens, drafting.streams.lookup.most_rows) == (8, 3)
    assert plain.streams.model_copy(update={"lookup": drafting.streams.lookup}) == drafting.streams
    assert (plain.kv, plain.scheduler) == (drafting.kv, drafting.scheduler)


def test_each_situation_is_measured_in_every_round(tiny_model: Path) -> None:
    told: list[str] = []
    plan = LookupPlan(model=tiny_model, threads=1, counts=(1, 2), tokens=24, rounds=2)
    gains = anyio.run(measure_lookup, plan, told.append)
    assert [(gain.kind, gain.sequences) for gain in gains] == [
        (kind, count) for kind in ("repeating", "ordinary") for count in (1, 2)
    ]
    assert len(told) == 4
    for gain in gains:
        assert len(gain.without) == len(gain.with_drafts) == 2
        assert min(*gain.without, *gain.with_drafts) > 0
        assert 0 <= gain.accepted <= gain.drafted


def test_a_model_that_is_missing_is_told(tiny_model: Path) -> None:
    plan = LookupPlan(model=tiny_model.with_name("missing.gguf"), threads=1)
    with pytest.raises(LlamalaneError):
        anyio.run(measure_lookup, plan, lambda line: None)


def test_gains_are_told_as_multiples_within_a_round() -> None:
    plan = LookupPlan(model=MODEL, threads=2)
    gain = LookupGain("repeating", 2, (10.0, 20.0, 10.0), (20.0, 30.0, 25.0), 200, 150)
    none = LookupGain("ordinary", 1, (10.0,), (10.0,), 0, 0)
    text = lookup_markdown(plan, [gain, none])
    assert "| repeating | 2 | 10.0 | 25.0 | 2.00 (1.50 to 2.50) | 75 % of 200 |" in text
    assert "| ordinary | 1 | 10.0 | 10.0 | 1.00 (1.00 to 1.00) | none drafted |" in text

"""Rows whose level changes while they run."""

from __future__ import annotations

from llamalane.ids import Level, RequestId
from llamalane.streams import Rank
from tests.streams.plans import join, plan
from tests.streams.set_rig import parts, rig

A, B = RequestId("a"), RequestId("b")


def test_a_row_that_gets_a_better_level_no_longer_sits_out_for_a_prompt() -> None:
    it = rig(capacity=64)
    it.apply(plan(1, join("a", 0, [1], level=5)))
    it.step()
    it.apply(plan(2, join("prompt", 1, list(range(100)), level=3), prefill_tokens=4))
    assert [set(parts(it.step())) for _ in range(2)] == [{"prompt"}, {"a", "prompt"}]
    it.apply(plan(3, Rank(A, Level(2), (2, 0.0, 1)), prefill_tokens=4))
    assert [set(parts(it.step())) for _ in range(2)] == [{"a", "prompt"}] * 2


def test_prompts_are_computed_by_the_new_urgency() -> None:
    it = rig(capacity=64)
    first = join("a", 0, list(range(20)), level=3, urgency=(3, 1.0))
    second = join("b", 1, list(range(20)), level=3, urgency=(3, 2.0))
    it.apply(plan(1, first, second, prefill_tokens=4))
    assert parts(it.step()) == {"a": 4}
    it.apply(plan(2, Rank(B, Level(1), (1, 2.0)), prefill_tokens=4))
    assert parts(it.step()) == {"b": 4}


def test_a_row_that_has_ended_meanwhile_is_left_alone() -> None:
    it = rig()
    it.apply(plan(1, join("a", 0, [1, 2])))
    it.apply(plan(2, Rank(RequestId("gone"), Level(1), (1, 0.0))))
    assert it.requests() == ["a"]

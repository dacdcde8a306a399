"""Which of the decoding rows have a part in a step."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import Level
from llamalane.streams import Join, StepShare
from tests.streams.plans import join, plan
from tests.streams.set_rig import Rig, parts, rig

URGENT, LESS_URGENT, LEAST = 1, 3, 5
ROWS = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=7)


def decoding(*rows: Join, share: StepShare | None = None) -> Rig:
    """A rig whose rows are all decoding, each having had a part in the last step."""
    it = rig(capacity=64)
    it.apply(plan(1, *rows))
    it.step()
    it.apply(plan(2, share=share))
    return it


def rows_of(levels: list[tuple[int, bool]]) -> list[Join]:
    return [join(f"r{i}", i, [1], level=level, sheltered=sheltered) for i, (level, sheltered) in enumerate(levels)]


def share_of(others: int, protected: int = 1) -> StepShare:
    return StepShare(Level(protected), others)


def a_long_prompt(level: int) -> Join:
    return join("prompt", 10, list(range(1000)), level=level)


def test_without_a_share_every_row_has_a_part_in_every_step() -> None:
    it = decoding(join("a", 0, [1], level=URGENT), join("b", 1, [1], level=LEAST))
    assert [parts(it.step()) for _ in range(4)] == [{"a": 1, "b": 1}] * 4


def test_rows_less_urgent_than_a_prompt_sit_out_every_second_step() -> None:
    it = decoding(join("same", 0, [1], level=LESS_URGENT), join("less", 1, [1], level=LEAST))
    it.apply(plan(3, a_long_prompt(LESS_URGENT), prefill_tokens=4))
    steps = [set(parts(it.step())) - {"prompt"} for _ in range(6)]
    assert steps == [{"same"}, {"same", "less"}] * 3


def test_once_the_prompt_is_computed_nobody_sits_out() -> None:
    it = decoding(join("less", 0, [1], level=LEAST))
    it.apply(plan(3, join("prompt", 1, [1, 2], level=URGENT)))
    assert [set(parts(it.step())) for _ in range(3)] == [{"prompt"}, {"prompt", "less"}, {"prompt", "less"}]


def test_the_less_urgent_take_turns() -> None:
    it = decoding(*(join(name, i, [1], level=LEAST) for i, name in enumerate("abcde")), share=share_of(2))
    turns = ["".join(parts(it.step())) for _ in range(5)]
    assert turns == ["ab", "cd", "ea", "bc", "de"]


def test_a_share_ends_with_the_plan_that_has_none() -> None:
    it = decoding(*(join(name, i, [1], level=LEAST) for i, name in enumerate("abc")), share=share_of(1))
    assert len(parts(it.step())) == 1
    it.apply(plan(3))
    assert len(parts(it.step())) == 3


def test_protected_rows_take_nothing_from_the_share_of_the_others() -> None:
    rows = [join("a", 0, [1], level=1), join("b", 1, [1], level=2), join("c", 2, [1], level=3)]
    it = decoding(*rows, share=share_of(1, protected=2))
    assert [set(parts(it.step())) for _ in range(3)] == [{"a", "b", "c"}] * 3


def test_with_a_share_of_nothing_only_the_sheltered_go_on() -> None:
    rows = [
        join("urgent", 0, [1], level=URGENT),
        join("sheltered", 1, [1], level=LEAST, sheltered=True),
        join("other", 2, [1], level=LEAST),
    ]
    it = decoding(*rows, share=share_of(0))
    assert [set(parts(it.step())) for _ in range(4)] == [{"urgent"}, {"urgent", "sheltered"}] * 2


def test_a_share_of_nothing_never_leaves_a_step_empty() -> None:
    it = decoding(join("a", 0, [1], level=LEAST), join("b", 1, [1], level=LEAST), share=share_of(0))
    assert all(parts(it.step()) for _ in range(4))


def test_a_share_and_an_urgent_prompt_together_leave_nobody_out_for_ever() -> None:
    it = decoding(*(join(name, i, [1], level=LEAST) for i, name in enumerate("abcd")), share=share_of(2))
    it.apply(plan(3, a_long_prompt(URGENT), prefill_tokens=4, share=share_of(2)))
    steps = [parts(it.step()) for _ in range(20)]
    counts = Counter(name for step in steps for name in step)
    assert counts["prompt"] == 20
    assert all(counts[name] >= 8 for name in "abcd")


@pytest.mark.parametrize("share", [None, share_of(1)])
def test_a_step_that_was_not_computed_changes_nobody_s_turn(share: StepShare | None) -> None:
    it = decoding(*(join(name, i, [1], level=LEAST) for i, name in enumerate("abc")), share=share)
    it.apply(plan(3, a_long_prompt(URGENT), prefill_tokens=4, share=share))
    abandoned = [parts(it.rows.fill(it.batch)) for _ in range(4)]
    assert abandoned == [parts(it.step())] * 4


@given(rows=ROWS, others=st.integers(1, 6), protected=st.integers(1, 4), steps=st.integers(1, 40))
def test_each_step_has_the_protected_rows_and_as_many_others_as_the_share_says(
    rows: list[tuple[int, bool]], others: int, protected: int, steps: int
) -> None:
    it = decoding(*rows_of(rows), share=share_of(others, protected))
    safe = {f"r{i}" for i, (level, _) in enumerate(rows) if level <= protected}
    sheltered = {f"r{i}" for i, (_, shelters) in enumerate(rows) if shelters} - safe
    waited: set[str] = set()
    for _ in range(steps):
        part = set(parts(it.step()))
        assert safe <= part
        assert waited & sheltered <= part, "a sheltered row sat out two steps in a row"
        assert len(part - safe) == max(len(waited & sheltered), min(others, len(rows) - len(safe)))
        waited = {f"r{i}" for i in range(len(rows))} - part


@given(levels=st.lists(st.integers(1, 5), min_size=1, max_size=7), others=st.integers(1, 6), steps=st.integers(1, 60))
def test_the_others_have_equal_parts(levels: list[int], others: int, steps: int) -> None:
    it = decoding(*rows_of([(level, False) for level in levels]), share=share_of(others))
    counts = Counter(name for _ in range(steps) for name in parts(it.step()))
    unprotected = [f"r{i}" for i, level in enumerate(levels) if level > 1]
    for name in unprotected:
        assert abs(counts[name] - steps * min(1, others / len(unprotected))) < 1


@given(rows=ROWS, others=st.integers(0, 3), prompts=st.lists(st.integers(0, 30), min_size=30, max_size=30))
def test_no_sheltered_row_sits_out_two_steps_in_a_row_whatever_prompts_come(
    rows: list[tuple[int, bool]], others: int, prompts: list[int]
) -> None:
    it = decoding(*rows_of(rows), share=share_of(others))
    sheltered = {f"r{i}" for i, (_, shelters) in enumerate(rows) if shelters}
    waited: set[str] = set()
    for step, length in enumerate(prompts):
        changes = [join(f"prompt-{step}", 100 + step, [1] * length, level=URGENT)] if length else []
        it.apply(plan(3 + step, *changes, prefill_tokens=8, share=share_of(others)))
        part = set(parts(it.step()))
        assert part
        assert waited & sheltered <= part
        waited = sheltered - part

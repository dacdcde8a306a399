"""Rows that may fill a number of cells, and the order of a step's rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.streams.plans import edit, grant, join, plan, trim
from tests.streams.set_rig import in_batch, parts, rig


def test_a_prompt_is_computed_as_far_as_its_cells_reach() -> None:
    it = rig()
    it.apply(plan(1, join("a", 0, [10, 11, 12, 13, 14], cells=3)))
    work = it.step()
    assert parts(work) == {"a": 3}
    assert work.outputs == []
    assert not it.rows.ready


def test_a_grant_lets_a_row_go_on_where_it_stopped() -> None:
    it = rig()
    it.apply(plan(1, join("a", 0, [10, 11, 12, 13, 14], cells=3)))
    it.step()
    it.apply(plan(2, grant("a", 5)))
    work = it.step()
    assert in_batch(it.batch) == [(0, 3, 13, False), (0, 4, 14, True)]
    assert [row.join.request for row in work.outputs] == ["a"]


def test_an_output_stops_when_its_cells_are_full() -> None:
    it = rig()
    it.apply(plan(1, join("a", 0, [10, 11, 12], cells=4)))
    it.step(token=7)
    it.step(token=8)
    assert in_batch(it.batch) == [(0, 3, 7, True)]
    assert not it.rows.ready
    it.apply(plan(2, grant("a", 6)))
    it.step()
    assert in_batch(it.batch) == [(0, 4, 8, True)]


def test_a_row_without_cells_of_its_own_runs_on_for_ever() -> None:
    it = rig()
    it.apply(plan(1, join("a", 0, [10])))
    for _ in range(50):
        it.step()
    assert it.rows.ready


def test_a_row_that_waits_for_cells_keeps_nobody_else_waiting() -> None:
    it = rig()
    it.apply(plan(1, join("full", 0, [10, 11], cells=2), join("free", 1, [10, 11])))
    it.step()
    for _ in range(5):
        assert it.rows.ready
        assert parts(it.step()) == {"free": 1}


def test_a_prompt_that_waits_for_cells_does_not_make_the_less_urgent_sit_out() -> None:
    it = rig()
    it.apply(plan(1, join("batch", 0, [10], level=5)))
    it.step()
    it.apply(plan(2, join("chat", 1, [10, 11, 12], cells=2, level=1)))
    assert parts(it.step()) == {"chat": 2}
    assert [parts(it.step()) for _ in range(3)] == [{"batch": 1}] * 3


def test_a_prompt_with_more_cached_than_granted_waits() -> None:
    it = rig()
    it.apply(plan(1, join("a", 0, [10, 11, 12, 13], cached=3, cells=2)))
    assert not it.rows.ready
    assert it.step().computed == []


def test_a_grant_for_one_who_is_gone_changes_nothing() -> None:
    it = rig()
    it.apply(plan(1, join("a", 0, [10], cells=1)))
    it.apply(plan(2, grant("ghost", 9)))
    assert it.row("a").cells == 1
    assert it.requests() == ["a"]


def test_a_grant_is_carried_out_once_though_plans_repeat_it() -> None:
    it = rig()
    small = edit(2, grant("a", 4))
    it.apply(plan(1, join("a", 0, [10], cells=1)))
    it.apply(plan(2, small))
    it.apply(plan(3, small, grant("a", 9)))
    it.apply(plan(4, small))
    assert it.row("a").cells == 9


def test_the_cells_of_sequences_that_no_row_uses_can_be_removed() -> None:
    it = rig()
    it.apply(plan(1, trim(2), trim(3, keep=5)))
    assert it.cells.removals == [(2, 0), (3, 5)]


def test_where_cells_cannot_be_cut_to_length_all_are_removed() -> None:
    it = rig(can_roll_back=False)
    it.apply(plan(1, trim(3, keep=5)))
    assert it.cells.removals == [(3, 0)]


def test_by_sequence_a_step_is_laid_out_in_the_order_of_sequences() -> None:
    it = rig(by_sequence=True)
    it.apply(plan(1, join("c", 2, [30]), join("a", 0, [10])))
    it.step(token=7)
    it.apply(plan(2, join("d", 3, [40, 41], urgency=(1.0,)), join("b", 1, [20, 21], urgency=(2.0,))))
    work = it.step()
    assert [sequence for sequence, *_ in in_batch(it.batch)] == [0, 1, 1, 2, 3, 3]
    assert [row.join.request for row in work.outputs] == ["a", "b", "c", "d"]


@given(
    prompts=st.dictionaries(st.integers(0, 7), st.integers(1, 12), min_size=1, max_size=6),
    urgencies=st.permutations(range(8)),
    budget=st.integers(0, 24),
    steps=st.integers(1, 8),
)
def test_by_sequence_the_same_tokens_are_computed_in_each_step(
    prompts: dict[int, int], urgencies: list[int], budget: int, steps: int
) -> None:
    changes = [
        join(f"r{sequence}", sequence, [100 * sequence + i for i in range(length)], urgency=(urgencies[sequence],))
        for sequence, length in prompts.items()
    ]
    usual, ordered = rig(), rig(by_sequence=True)
    for each in (usual, ordered):
        each.apply(plan(1, *changes, prefill_tokens=budget))
    for _ in range(steps):
        usual.step()
        work = ordered.step()
        rows = in_batch(ordered.batch)
        assert sorted(rows) == sorted(in_batch(usual.batch))
        assert [sequence for sequence, *_ in rows] == sorted(sequence for sequence, *_ in rows)
        assert [row.join.sequence for row in work.outputs] == [sequence for sequence, *_, wanted in rows if wanted]

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamalane.ids import RequestId
from llamalane.streams import Edit
from tests.streams.plans import edit, join, leave, plan
from tests.streams.set_rig import in_batch, rig


def test_a_prompt_is_computed_and_then_each_token_that_was_chosen() -> None:
    it = rig()
    it.apply(plan(1, join("a", 1, [10, 11, 12])))
    work = it.step(token=7)
    assert in_batch(it.batch) == [(1, 0, 10, False), (1, 1, 11, False), (1, 2, 12, True)]
    assert (work.prefill_tokens, work.decode_rows, work.started) == (3, 0, ["a"])
    work = it.step(token=8)
    assert in_batch(it.batch) == [(1, 3, 7, True)]
    assert (work.prefill_tokens, work.decode_rows, work.started) == (0, 1, [])
    it.step()
    assert in_batch(it.batch) == [(1, 4, 8, True)]


def test_a_plan_repeated_is_carried_out_once() -> None:
    it = rig()
    first = plan(1, join("a"))
    assert it.apply(first).left == []
    it.step()
    (row,) = it.rows
    it.apply(first)
    assert list(it.rows) == [row]
    it.apply(plan(2, edit(1, join("a")), join("b", 1)))
    assert it.requests() == ["a", "b"]
    assert row.chosen == 1, "the row was made anew"
    assert it.apply(plan(3, edit(1, join("a")), edit(2, join("b", 1)), leave("a"))).left == ["a"]
    assert it.apply(plan(4, edit(3, leave("a")))).left == []
    assert it.requests() == ["b"]
    assert it.rows.version == 4


def test_who_joins_has_all_other_cells_of_its_sequence_removed() -> None:
    it = rig()
    it.apply(plan(1, join("a", 2, [10, 11, 12], cached=2)))
    assert it.cells.removals == [(2, 2)]
    it.step()
    assert in_batch(it.batch) == [(2, 2, 12, True)]


def test_what_is_cached_is_computed_anew_where_it_cannot_be_cut_to_length() -> None:
    it = rig(can_roll_back=False)
    it.apply(plan(1, join("a", 2, [10, 11, 12], cached=2)))
    assert it.cells.removals == [(2, 0)]
    it.step()
    assert [position for _, position, _, _ in in_batch(it.batch)] == [0, 1, 2]


def test_who_leaves_keeps_the_cells_that_it_was_told_to() -> None:
    it = rig()
    it.apply(plan(1, join("a", 1)))
    it.step()
    assert it.apply(plan(2, leave("a", keep=2))).left == ["a"]
    assert it.cells.removals[1:] == [(1, 2)]
    assert len(it.rows) == 0
    assert it.samplers[RequestId("a")].closed


def test_who_leaves_keeps_nothing_where_cells_cannot_be_cut_to_length() -> None:
    it = rig(can_roll_back=False)
    it.apply(plan(1, join("a", 1)))
    it.apply(plan(2, leave("a", keep=2)))
    assert it.cells.removals == [(1, 0), (1, 0)]


def test_leaving_twice_or_unknown_is_confirmed_and_touches_nothing() -> None:
    it = rig()
    assert it.apply(plan(1, leave("ghost", keep=3))).left == ["ghost"]
    assert it.cells.removals == []
    it.apply(plan(2, join("a", 1)))
    (row,) = it.rows
    it.rows.retire(row, it.cells)
    assert it.apply(plan(3, leave("a", keep=3))).left == ["a"]
    assert it.cells.removals == [(1, 0)]


def test_a_place_can_change_hands_within_one_plan() -> None:
    it = rig()
    it.apply(plan(1, join("a", 0)))
    it.step()
    assert it.apply(plan(2, leave("a"), join("b", 0, [20, 21]))).left == ["a"]
    assert it.requests() == ["b"]
    it.step()
    assert in_batch(it.batch) == [(0, 0, 20, False), (0, 1, 21, True)]


def test_decoding_rows_come_first_then_prompts_by_urgency() -> None:
    it = rig()
    it.apply(plan(1, join("late", 0, [1], urgency=(5.0, 1.0)), join("soon", 1, [1], urgency=(1.0, 9.0))))
    it.step(token=7)
    changes = [
        join("c", 2, [30, 31], urgency=(3.0, 0.0)),
        join("a", 3, [10, 11], urgency=(1.0, 5.0)),
        join("b", 4, [20, 21], urgency=(1.0, 6.0)),
    ]
    it.apply(plan(2, *changes))
    work = it.step()
    assert [sequence for sequence, _, _, _ in in_batch(it.batch)] == [0, 1, 3, 3, 4, 4, 2, 2]
    assert work.decode_rows == 2
    assert work.started == ["a", "b", "c"]
    assert [row.join.request for row in work.outputs] == ["late", "soon", "a", "b", "c"]


def test_equal_urgency_goes_by_who_joined_first() -> None:
    it = rig()
    it.apply(plan(1, *(join(name, place, [1, 2]) for place, name in enumerate("dacb"))))
    assert it.step().started == list("dacb")


def test_a_budget_cuts_prompts_into_chunks_and_gives_logits_only_at_their_end() -> None:
    it = rig()
    long, short = list(range(100, 105)), [50, 51]
    changes = [join("short", 1, short, urgency=(2.0,)), join("long", 0, long, urgency=(1.0,))]
    it.apply(plan(1, *changes, prefill_tokens=3))
    first = it.step()
    assert in_batch(it.batch) == [(0, 0, 100, False), (0, 1, 101, False), (0, 2, 102, False)]
    assert (first.prefill_tokens, first.started, first.outputs) == (3, ["long"], [])
    second = it.step()
    assert in_batch(it.batch) == [(0, 3, 103, False), (0, 4, 104, True), (1, 0, 50, False)]
    assert second.started == ["short"]
    third = it.step()
    assert in_batch(it.batch)[0] == (1, 1, 51, True)
    assert (third.decode_rows, third.prefill_tokens, third.started) == (2, 0, [])


@pytest.mark.parametrize("budget", [0, -5])
def test_a_prompt_goes_on_even_with_a_budget_of_nothing(budget: int) -> None:
    it = rig()
    it.apply(plan(1, join("a", 0, [1, 2, 3, 4]), prefill_tokens=budget))
    assert [it.step().prefill_tokens for _ in range(3)] == [1, 1, 1]
    assert it.step().decode_rows == 1


def test_decoding_rows_do_not_use_up_the_budget() -> None:
    it = rig()
    it.apply(plan(1, *(join(name, i, [1]) for i, name in enumerate("abc"))))
    it.step()
    it.apply(plan(2, join("d", 3, [1, 2, 3, 4]), prefill_tokens=2))
    work = it.step()
    assert (work.decode_rows, work.prefill_tokens) == (3, 2)


def test_a_step_never_outgrows_its_batch() -> None:
    it = rig(capacity=4)
    it.apply(plan(1, *(join(name, i, [1]) for i, name in enumerate("abc"))))
    it.step()
    it.apply(plan(2, join("d", 3, list(range(10))), prefill_tokens=100))
    work = it.step()
    assert (work.decode_rows, work.prefill_tokens, it.batch.size) == (3, 1, 4)


def test_prompts_wait_while_decoding_rows_fill_the_batch() -> None:
    it = rig(capacity=2)
    it.apply(plan(1, join("a", 0, [1]), join("b", 1, [1])))
    it.step()
    it.apply(plan(2, join("c", 2, [1, 2])))
    assert it.step().decode_rows == 2
    it.apply(plan(3, leave("a")))
    assert it.step().started == ["c"]


def test_an_empty_set_has_nothing_to_compute() -> None:
    it = rig()
    work = it.rows.fill(it.batch)
    assert (work.outputs, work.computed, work.decode_rows, work.prefill_tokens, work.started) == ([], [], 0, 0, [])
    assert it.batch.size == 0


def test_an_empty_plan_is_acknowledged_and_sets_the_budget() -> None:
    it = rig()
    it.apply(plan(3, prefill_tokens=5))
    assert (it.rows.version, it.rows.prefill_tokens) == (3, 5)


def test_clearing_closes_every_sampler() -> None:
    it = rig()
    it.apply(plan(1, join("a"), join("b", 1)))
    it.rows.clear()
    assert len(it.rows) == 0
    assert all(sampler.closed for sampler in it.samplers.values())


@settings(deadline=None)
@given(
    changes=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=12),
    fates=st.lists(st.sampled_from(["lost", "taken", "acknowledged"]), min_size=12, max_size=12),
)
def test_however_plans_are_replaced_every_edit_is_carried_out_once(
    changes: list[tuple[bool, int]], fates: list[str]
) -> None:
    it = rig()
    pending: list[Edit] = []
    present: list[str] = []
    expected_left: list[str] = []
    left: list[str] = []
    for version, ((joins, number), fate) in enumerate(zip(changes, fates, strict=False), 1):
        name = f"r{number}"
        if joins and name not in present:
            pending.append(edit(version, join(name, number)))
            present.append(name)
        elif not joins:
            pending.append(edit(version, leave(name)))
            present = [other for other in present if other != name]
            expected_left.append(name)
        if fate != "lost":
            left += it.apply(plan(version, *pending)).left
        if fate == "acknowledged":
            pending = []
    left += it.apply(plan(13, *pending)).left
    assert it.requests() == present
    assert left == expected_left


@settings(deadline=None)
@given(
    prompts=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    budget=st.integers(0, 24),
    capacity=st.integers(6, 24),
)
def test_every_prompt_is_computed_whole_and_in_order(prompts: list[int], budget: int, capacity: int) -> None:
    it = rig(capacity)
    changes = [
        join(f"r{place}", place, [100 * place + i for i in range(length)]) for place, length in enumerate(prompts)
    ]
    it.apply(plan(1, *changes, prefill_tokens=budget))
    seen: dict[int, list[int]] = {place: [] for place in range(len(prompts))}
    while not all(row.chosen for row in it.rows):
        work = it.step(token=-1)
        rows = in_batch(it.batch)
        assert len(rows) == work.decode_rows + work.prefill_tokens <= capacity
        assert 0 <= work.prefill_tokens <= max(budget, 1)
        assert sum(wanted for *_, wanted in rows) == len(work.outputs) == it.batch.outputs
        assert rows, "a step without progress"
        for sequence, position, token, _ in rows:
            assert position == len(seen[sequence])
            seen[sequence].append(token)
    for place, length in enumerate(prompts):
        assert seen[place][:length] == [100 * place + i for i in range(length)]

"""Which rows of a step draft tokens, and how many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import Level
from llamalane.streams import ContextShift, StepShare
from llamalane.streams.drafts import DraftOptions
from llamalane.streams.running_set import Work
from tests.streams.plans import grant, join, plan
from tests.streams.set_rig import Rig, in_batch, parts, rig

ROUND = [10, 11, 12, 13, 14, 15, 16, 17, 10, 11, 12]
"""A prompt that begins again at its end: 13 and what follows are likely to come next."""
ALWAYS = DraftOptions(draft_tokens=4, most_rows=2)
PLENTY = 100


def drafting(options: DraftOptions = ALWAYS, *, capacity: int = 64, output_rows: int = 64, **others: Any) -> Rig:
    return rig(capacity, output_rows=output_rows, drafting=options, **others)


def begin(it: Rig, *requests: str, max_tokens: int = PLENTY, cells: int | None = None) -> None:
    """Let requests of the same prompt, which begins again at its end, get their first token: the one that is next."""
    joins = (join(name, number, ROUND, max_tokens=max_tokens, cells=cells) for number, name in enumerate(requests))
    it.apply(plan(1, *joins))
    it.step(token=13)


def drafts(work: Work) -> Mapping[str, list[int]]:
    return {row.join.request: list(draft) for row, draft in work.drafts.items()}


def next_step(it: Rig) -> Work:
    return it.rows.fill(it.batch)


def test_what_followed_before_is_computed_with_the_next_token() -> None:
    it = drafting()
    begin(it, "a")
    work = next_step(it)
    assert in_batch(it.batch) == [(0, 11, 13, True), (0, 12, 14, True), (0, 13, 15, True)]
    assert drafts(work) == {"a": [14, 15]}
    assert (work.places, work.decode_rows, work.drafted_tokens) == ([0], 1, 2)
    assert [row.join.request for row in work.outputs] == ["a"]


def test_without_the_option_nothing_is_drafted() -> None:
    it = rig(output_rows=64)
    begin(it, "a")
    assert not next_step(it).drafts
    assert it.row("a").drafter is None
    assert len(in_batch(it.batch)) == 1


def test_each_row_chooses_by_its_own_logits() -> None:
    it = drafting()
    begin(it, "a", "b")
    work = next_step(it)
    assert work.places == [0, 3]
    assert [token for _, _, token, _ in in_batch(it.batch)] == [13, 14, 15] * 2


def test_a_row_without_a_draft_stands_beside_one_that_has_one() -> None:
    it = drafting()
    it.apply(plan(1, join("a", 0, ROUND, max_tokens=9), join("b", 1, [30, 31, 32], max_tokens=9)))
    it.step(token=13)
    work = next_step(it)
    assert drafts(work) == {"a": [14, 15]}
    assert parts(work) == {"a": 3, "b": 1}
    assert dict(zip([row.join.request for row in work.outputs], work.places, strict=True)) == {"a": 0, "b": 3}


def test_what_turns_out_wrong_is_removed() -> None:
    it = drafting()
    begin(it, "a")
    it.step(token=99)
    row = it.row("a")
    assert (row.tokens[-2:], row.computed) == ([13, 99], len(ROUND) + 1)
    assert it.cells.removals[-1] == (0, len(ROUND) + 1)


def test_where_it_cannot_be_removed_all_is_computed_again() -> None:
    it = drafting(can_roll_back=False)
    begin(it, "a")
    it.step(token=99)
    row = it.row("a")
    assert row.computed == 0
    assert it.cells.removals[-1] == (0, 0)
    assert parts(next_step(it)) == {"a": len(row.tokens)}


@pytest.mark.parametrize(("left", "drafted"), [(1, 0), (2, 1), (3, 2), (9, 2)])
def test_no_more_is_drafted_than_may_be_chosen(left: int, drafted: int) -> None:
    it = drafting()
    begin(it, "a", max_tokens=1 + left)
    assert next_step(it).drafted_tokens == drafted


@pytest.mark.parametrize(("more", "drafted"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_no_more_is_drafted_than_there_are_cells_for(more: int, drafted: int) -> None:
    it = drafting()
    begin(it, "a", cells=len(ROUND) + 1 + more)
    assert next_step(it).drafted_tokens == drafted
    it.apply(plan(2, grant("a", len(ROUND) + 20)))
    assert next_step(it).drafted_tokens == 2


@pytest.mark.parametrize(("more", "drafted"), [(1, 0), (2, 1), (3, 2), (9, 2)])
def test_a_sequence_does_not_get_full_within_a_step(more: int, drafted: int) -> None:
    shift = ContextShift(len(ROUND) + 1 + more, 0)
    it = rig(64, output_rows=64, shift=shift, drafting=ALWAYS)
    begin(it, "a")
    assert next_step(it).drafted_tokens == drafted


def test_after_a_shift_drafts_are_of_what_is_left() -> None:
    it = rig(64, output_rows=64, shift=ContextShift(20, 0), drafting=ALWAYS)
    it.apply(plan(1, join("a", 0, [1, 2, 3] * 4, max_tokens=PLENTY)))
    it.step(token=1)
    assert drafts(next_step(it)) == {"a": [2, 3]}
    for token in (2, 3, 1, 2, 3, 1, 2, 3):
        it.step(token=token)
    assert it.cells.shifts == [(0, 0, 9)]
    assert it.row("a").tokens == [1, 2, 3] * 4
    assert drafts(next_step(it)) == {"a": [1, 2]}


@pytest.mark.parametrize(("output_rows", "capacity"), [(3, 64), (64, 11)])
def test_a_step_has_no_more_tokens_than_there_is_room_for(output_rows: int, capacity: int) -> None:
    it = drafting(DraftOptions(draft_tokens=16, most_rows=2), output_rows=output_rows, capacity=capacity)
    it.apply(plan(1, *(join(name, number, [5] * 10, max_tokens=50) for number, name in enumerate("ab"))))
    while any(not row.decoding for row in it.rows):
        it.step(token=5)
    for _ in range(5):
        work = next_step(it)
        assert it.batch.outputs <= output_rows
        for row, draft in work.drafts.items():
            assert row.drafter is not None
            row.drafter.note(len(draft), len(draft))
    assert it.batch.outputs == min(output_rows, capacity)


def test_in_a_step_with_too_many_rows_nobody_drafts() -> None:
    it = drafting()
    begin(it, "a", "b", "c")
    assert not next_step(it).drafts
    it.rows.retire(it.row("b"), it.cells)
    assert set(drafts(next_step(it))) == {"a", "c"}


def test_rows_that_sit_out_count_as_well() -> None:
    it = drafting(DraftOptions(draft_tokens=4, most_rows=1))
    it.apply(plan(1, *(join(f"level-{level}", level, ROUND, max_tokens=9, level=level) for level in (1, 2))))
    it.step(token=13)
    it.apply(plan(2, share=StepShare(Level(1), 0)))
    work = next_step(it)
    assert parts(work) == {"level-1": 1}


def test_beside_a_prompt_nobody_drafts() -> None:
    it = drafting()
    begin(it, "a")
    it.apply(plan(2, join("b", 1, [20, 21, 22])))
    work = next_step(it)
    assert parts(work) == {"a": 1, "b": 3}
    assert not work.drafts


def test_only_rows_of_the_levels_that_may_draft() -> None:
    it = drafting(DraftOptions(draft_tokens=4, most_rows=2, levels=frozenset({Level(2)})))
    joins = [join(f"level-{level}", level, ROUND, max_tokens=9, level=level) for level in (1, 2)]
    it.apply(plan(1, *joins))
    it.step(token=13)
    assert set(drafts(next_step(it))) == {"level-2"}


def test_where_sequences_have_parts_of_their_own_all_draft_as_much() -> None:
    it = drafting(by_sequence=True)
    it.apply(plan(1, join("b", 1, ROUND, max_tokens=9), join("a", 0, ROUND, max_tokens=3)))
    it.step(token=13)
    work = next_step(it)
    assert parts(work) == {"a": 2, "b": 2}
    assert [sequence for sequence, *_ in in_batch(it.batch)] == [0, 0, 1, 1]
    assert [row.join.request for row in work.outputs] == ["a", "b"]
    assert work.places == [0, 2]


def test_where_sequences_have_parts_of_their_own_one_without_a_draft_keeps_others_from_drafting() -> None:
    it = drafting(by_sequence=True)
    it.apply(plan(1, join("a", 0, ROUND, max_tokens=9), join("b", 1, [30, 31], max_tokens=9)))
    it.step(token=13)
    assert parts(next_step(it)) == {"a": 1, "b": 1}


@given(
    sequences=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=4),
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    options=st.builds(DraftOptions, draft_tokens=st.integers(1, 16), most_rows=st.integers(1, 4)),
    room=st.integers(4, 20),
    cells=st.integers(20, 40),
    max_tokens=st.integers(1, 40),
    by_sequence=st.booleans(),
)
def test_drafts_never_take_more_than_there_is(
    sequences: list[list[int]],
    tokens: list[int],
    options: DraftOptions,
    room: int,
    cells: int,
    max_tokens: int,
    by_sequence: bool,
) -> None:
    it = rig(24, output_rows=room, drafting=options, by_sequence=by_sequence)
    joins = [
        join(f"r{number}", number, prompt, max_tokens=max_tokens, cells=cells)
        for number, prompt in enumerate(sequences)
    ]
    it.apply(plan(1, *joins, prefill_tokens=24))
    for token in tokens:
        for row in [row for row in it.rows if row.chosen == max_tokens]:
            it.rows.retire(row, it.cells)
        work = it.step(token=token)
        assert it.batch.size <= 24
        assert it.batch.outputs <= max(room, len(sequences))
        assert not work.drafts or (not work.prompts and work.decode_rows <= options.most_rows)
        for _, position, _, _ in in_batch(it.batch):
            assert position < cells
        for row, draft in work.drafts.items():
            assert row.chosen + len(draft) <= max_tokens
            assert len(draft) <= options.draft_tokens
            assert len(row.tokens) - row.computed == 1

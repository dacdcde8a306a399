"""Rows that are taken off and put back, by a running set between fakes."""

from __future__ import annotations

import pytest

from llamalane.ids import RequestId, SequenceId
from llamalane.streams import Parked, Parking, SavedCells
from tests.streams.plans import edit, join, leave, park, plan
from tests.streams.set_rig import Rig, in_batch, rig

SAVED = SavedCells(bytearray(b"cells of 1"), 3)


def running(*, can_roll_back: bool = True) -> Rig:
    """A rig with one row, of which the prompt and one token were computed: 4 tokens."""
    it = rig(can_roll_back=can_roll_back)
    it.apply(plan(1, join("a", 1, [10, 11, 12])))
    it.step(token=7)
    it.step(token=8)
    it.cells.removals.clear()
    return it


def park_it(it: Rig, how: Parking, version: int = 2) -> Parked:
    (parked,) = it.apply(plan(version, park("a", 1, how))).parked
    return parked


@pytest.mark.parametrize("how", list(Parking))
def test_a_parked_row_is_gone_and_its_sampler_closed(how: Parking) -> None:
    it = running()
    assert park_it(it, how).request == "a"
    assert it.requests() == []
    assert it.samplers[RequestId("a")].closed


@pytest.mark.parametrize("how", list(Parking))
def test_the_others_run_on(how: Parking) -> None:
    it = running()
    it.apply(plan(2, join("b", 2, [20]), park("a", 1, how)))
    it.step()
    assert in_batch(it.batch) == [(2, 0, 20, True)]


def test_pausing_leaves_the_cells_where_they_are() -> None:
    it = running()
    assert park_it(it, Parking.PAUSE) == Parked(RequestId("a"), 4)
    assert (it.cells.removals, it.cells.saves) == ([], [])


def test_swapping_saves_the_cells_before_it_removes_them() -> None:
    it = running()
    parked = park_it(it, Parking.SWAP)
    assert parked.saved == SavedCells(bytearray(b"cells of 1"), 4)
    assert parked.computed == 4
    assert parked.seconds >= 0
    assert it.cells.removals == [(1, 0)]


def test_recomputing_removes_the_cells_and_saves_nothing() -> None:
    it = running()
    parked = park_it(it, Parking.RECOMPUTE)
    assert (parked.computed, parked.saved) == (4, None)
    assert (it.cells.removals, it.cells.saves) == ([(1, 0)], [])


def test_a_row_of_which_nothing_was_computed_has_nothing_to_save() -> None:
    it = rig()
    edited = it.apply(plan(1, join("a", 1), park("a", 1, Parking.SWAP)))
    assert [(parked.computed, parked.saved) for parked in edited.parked] == [(0, None)]
    assert it.cells.saves == []


def test_a_prompt_parked_half_way_says_how_far_it_came() -> None:
    it = rig()
    it.apply(plan(1, join("a", 1, list(range(10))), prefill_tokens=6))
    it.step()
    assert park_it(it, Parking.PAUSE).computed == 6


@pytest.mark.parametrize("how", [Parking.SWAP, Parking.RECOMPUTE])
def test_a_paused_sequence_can_give_up_its_cells_later(how: Parking) -> None:
    it = running()
    park_it(it, Parking.PAUSE)
    it.cells.lengths[SequenceId(1)] = 4
    parked = park_it(it, how, version=3)
    assert parked.computed == 4
    assert (parked.saved is not None) == (how is Parking.SWAP)
    assert it.cells.removals == [(1, 0)]


def test_parking_one_who_has_ended_tells_what_the_cells_hold() -> None:
    it = running()
    it.rows.retire(it.row("a"), it.cells)
    it.cells.lengths[SequenceId(1)] = 4
    assert park_it(it, Parking.PAUSE) == Parked(RequestId("a"), 4)


def test_parking_is_carried_out_once_though_plans_repeat_it() -> None:
    it = running()
    change = edit(2, park("a", 1, Parking.SWAP))
    assert len(it.apply(plan(2, change)).parked) == 1
    assert it.apply(plan(3, change)).parked == []
    assert it.cells.saves == [1]


def test_leaving_while_paused_is_confirmed_and_touches_no_cells() -> None:
    it = running()
    park_it(it, Parking.PAUSE)
    assert it.apply(plan(3, leave("a", keep=2))).left == ["a"]
    assert it.cells.removals == []


@pytest.mark.parametrize("how", [Parking.SWAP, Parking.RECOMPUTE])
def test_another_can_have_the_sequence_within_the_same_plan(how: Parking) -> None:
    it = running()
    edited = it.apply(plan(2, park("a", 1, how), join("b", 1, [20, 21])))
    assert [parked.computed for parked in edited.parked] == [4]
    assert it.requests() == ["b"]
    it.step()
    assert in_batch(it.batch) == [(1, 0, 20, False), (1, 1, 21, True)]


def test_a_paused_row_goes_on_with_the_token_that_was_chosen_last() -> None:
    it = running()
    parked = park_it(it, Parking.PAUSE)
    history = [10, 11, 12, 7, 8]
    it.apply(plan(3, join("a", 1, history, cached=parked.computed, generated=2, max_tokens=2)))
    assert it.cells.removals == [(1, 4)], "nothing beyond what it had"
    work = it.step()
    assert in_batch(it.batch) == [(1, 4, 8, True)]
    assert (work.decode_rows, work.prefill_tokens) == (1, 0)


def test_saved_cells_are_put_back_and_only_the_rest_is_computed() -> None:
    it = rig()
    it.apply(plan(1, join("a", 2, [10, 11, 12, 7, 8], cached=3, saved=SAVED)))
    assert it.cells.restorals == [(2, b"cells of 1")]
    it.step()
    assert in_batch(it.batch) == [(2, 3, 7, False), (2, 4, 8, True)]


def test_when_saved_cells_cannot_be_put_back_everything_is_computed() -> None:
    it = rig()
    it.cells.can_restore = False
    it.apply(plan(1, join("a", 2, [10, 11, 12, 7], cached=3, saved=SAVED)))
    it.step()
    assert [(position, token) for _, position, token, _ in in_batch(it.batch)] == [(0, 10), (1, 11), (2, 12), (3, 7)]


def test_saved_cells_can_be_put_back_though_sequences_cannot_be_cut_to_length() -> None:
    it = rig(can_roll_back=False)
    it.apply(plan(1, join("a", 2, [10, 11, 12, 7], cached=3, saved=SAVED)))
    it.step()
    assert in_batch(it.batch) == [(2, 3, 7, True)]

"""Work in parts between two steps: the cells of long sequences keep nobody from the next step for long."""

from __future__ import annotations

import pytest

from llamalane.ids import SequenceId
from llamalane.streams import Change, Join, Parking, Restore, SavedCells, Stow
from llamalane.streams.parts import LEAST_SECONDS, STEP_SHARE, Gap
from llamalane.streams.running_set import News
from tests.streams.plans import edit, join, leave, park, plan
from tests.streams.set_rig import Rig, rig

PARTS = 5
SAVED = SavedCells(bytearray(b"cells"), 3)


class Clock:
    """Counts seconds that tests let pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def parts_in_a_gap(gap: Gap, clock: Clock, seconds: float) -> int:
    gap.begin()
    parts = 1
    clock.now += seconds
    while gap.has_time():
        parts += 1
        clock.now += seconds
    return parts


@pytest.mark.parametrize(("seconds", "parts"), [(0.004, 2), (0.0049, 2), (0.006, 1), (0.0019, 5), (0.1, 1)])
def test_no_more_parts_are_done_than_fit_between_two_steps_but_one_is(seconds: float, parts: int) -> None:
    clock = Clock()
    gap = Gap(clock)
    for _ in range(3):
        assert parts_in_a_gap(gap, clock, seconds) == parts
    if parts > 1:
        assert parts * seconds <= LEAST_SECONDS


def test_long_steps_leave_time_for_more() -> None:
    clock = Clock()
    gap = Gap(clock)
    for _ in range(100):
        gap.observe_step(0.1)
    assert gap.most == pytest.approx(STEP_SHARE * 0.1)
    assert parts_in_a_gap(gap, clock, 0.006) == 8


def in_parts() -> Rig:
    """A rig whose rows `a` and `b` decode, and whose sequences are saved in five parts."""
    it = rig()
    it.cells.parts = PARTS
    it.cells.lengths = dict.fromkeys(map(SequenceId, range(1, 6)), 3)
    it.apply(plan(1, join("a", 1), join("b", 2)))
    it.step()
    return it


def no_time() -> bool:
    return False


LONG: dict[str, Change] = {
    "swap": park("a", 1, Parking.SWAP),
    "stow": Stow(1, SequenceId(3)),
    "put back": Restore(1, SequenceId(3), lambda: SAVED.data, 3),
    "resume": join("c", 4, cached=3, saved=SAVED),
}


@pytest.mark.parametrize("change", LONG.values(), ids=LONG)
def test_cells_are_copied_a_part_at_a_time_and_steps_go_on_in_between(change: Change) -> None:
    it = in_parts()
    it.rows.apply(plan(2, change, join("last", 5)), it.cells, no_time)
    for part in range(1, PARTS):
        assert it.cells.parts_done == part
        assert it.rows.busy
        assert it.rows.version == 1, "the plan is thought to be carried out"
        assert "last" not in it.requests()
        assert "b" in [row.join.request for row in it.step().outputs]
        assert it.rows.take_news() == News()
        it.rows.carry_on(it.cells, no_time)
    assert it.cells.parts_done == PARTS
    if it.rows.busy:  # there was time for that alone
        it.rows.carry_on(it.cells, no_time)
    assert it.rows.version == 2
    assert "last" in it.requests()
    news = it.rows.take_news()
    assert len([*news.parked, *news.stowed, *news.restored]) == (not isinstance(change, Join))


def test_a_row_that_is_swapped_has_no_part_in_the_steps_in_between() -> None:
    it = in_parts()
    it.rows.apply(plan(2, park("a", 1, Parking.SWAP)), it.cells, no_time)
    assert it.rows.take_news().parked == []
    assert [row.join.request for row in it.step().outputs] == ["b"]
    while it.rows.busy:
        it.rows.carry_on(it.cells, no_time)
    (parked,) = it.rows.take_news().parked
    assert (parked.request, parked.computed, parked.saved is not None) == ("a", 3, True)
    assert it.cells.removals[-1] == (1, 0)


def test_two_swaps_in_one_plan_do_not_add_up_between_two_steps() -> None:
    it = in_parts()
    it.cells.parts = 1
    it.apply(plan(2, join("c", 3)))
    it.step()
    it.rows.apply(plan(3, park("a", 1, Parking.SWAP), park("b", 2, Parking.SWAP)), it.cells, no_time)
    assert [parked.request for parked in it.rows.take_news().parked] == ["a"]
    it.rows.carry_on(it.cells, no_time)
    assert [parked.request for parked in it.rows.take_news().parked] == ["b"]
    assert not it.rows.busy


def test_a_plan_that_repeats_what_has_begun_does_not_begin_it_again() -> None:
    it = in_parts()
    swap = edit(2, park("a", 1, Parking.SWAP))
    it.rows.apply(plan(2, swap), it.cells, no_time)
    it.rows.apply(plan(3, swap, leave("b")), it.cells, no_time)
    while it.rows.busy:
        it.rows.carry_on(it.cells, no_time)
    news = it.rows.take_news()
    assert ([parked.request for parked in news.parked], news.left) == (["a"], ["b"])
    assert it.cells.parts_done == PARTS
    assert it.rows.version == 3


def test_nothing_is_left_for_later_when_nobody_waits_for_a_step() -> None:
    it = in_parts()
    changes = (leave("b"), park("a", 1, Parking.SWAP), join("c", 4, cached=3, saved=SAVED))
    it.rows.apply(plan(2, *changes), it.cells, no_time)
    assert not it.rows.busy
    assert it.requests() == ["c"]
    assert it.cells.parts_done == 2 * PARTS


def test_a_lane_that_loses_its_context_forgets_what_it_had_begun() -> None:
    it = in_parts()
    it.rows.apply(plan(2, park("a", 1, Parking.SWAP)), it.cells, no_time)
    it.rows.clear()
    assert not it.rows.busy
    news = it.apply(plan(3, join("d", 1)))
    assert (news.parked, it.requests()) == ([], ["d"])

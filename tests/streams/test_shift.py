"""Rows that are full, by a running set between fakes, and on a lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import ConfigError
from llamalane.ids import RequestId, SequenceId, StepNumber
from llamalane.streams import ContextShift, FinishReason, Parked, Parking
from llamalane.streams.lane import Lane
from llamalane.streams.llama import Batch, Context, Model
from tests.streams.lane_rig import ENDLESS, OPTIONS, PROMPT, ROUNDING, Inbox, Script, finish_of, tokens_of
from tests.streams.plans import join, park, plan
from tests.streams.set_rig import Rig, in_batch, rig

LIMIT, KEEP = 12, 2
SHIFT = ContextShift(LIMIT, KEEP)
TOKENS = [10, 11, 12, 13]


def full(**options: Any) -> Rig:
    """A rig with a row that has as many tokens as it can have; the last one is to be computed."""
    it = rig(shift=SHIFT, **options)
    it.apply(plan(1, join("a", 1, TOKENS, max_tokens=100)))
    for token in range(20, 20 + LIMIT - len(TOKENS)):
        it.step(token)
    assert len(it.row("a").tokens) == LIMIT
    it.cells.removals.clear()
    return it


# What is left: the first two, and the later half of the nine computed after them with the one that was not.
WINDOW = [10, 11, 22, 23, 24, 25, 26, 27]


def test_a_full_row_loses_half_of_what_follows_its_first_tokens() -> None:
    it = full()
    it.step(token=30)
    assert it.cells.shifts == [(1, KEEP, 4)]
    assert it.row("a").tokens == [*WINDOW, 30]
    assert in_batch(it.batch) == [(1, len(WINDOW) - 1, WINDOW[-1], True)]


def test_a_row_whose_cells_cannot_be_moved_computes_what_is_left_again() -> None:
    it = full()
    it.cells.can_shift = False
    work = it.step(token=30)
    assert work.prefill_tokens == len(WINDOW)
    assert [token for _, _, token, _ in in_batch(it.batch)] == WINDOW
    assert it.row("a").tokens == [*WINDOW, 30]


def test_a_step_in_which_cells_are_moved_is_known() -> None:
    it = full()
    assert it.rows.shift(it.cells)
    assert not it.rows.shift(it.cells)


def test_a_row_that_is_not_full_is_left_alone() -> None:
    it = rig(shift=SHIFT)
    it.apply(plan(1, join("a", 1, list(range(LIMIT - 1)), max_tokens=100)))
    it.step()
    assert it.cells.shifts == []


@pytest.mark.parametrize("how", list(Parking))
def test_a_full_row_is_parked_without_its_cells(how: Parking) -> None:
    it = full()
    (parked,) = it.apply(plan(2, park("a", 1, how))).parked
    assert parked == Parked(RequestId("a"), 0)
    assert it.cells.removals == [(1, 0)]
    assert it.cells.saves == []


@given(limit=st.integers(8, 10_000), data=st.data())
def test_a_shift_keeps_the_first_tokens_and_the_newest(limit: int, data: st.DataObject) -> None:
    keep = data.draw(st.integers(0, limit // 2))
    shift = ContextShift(limit, keep)
    assert shift.dropped(limit - 1) == 0
    dropped = shift.dropped(limit)
    tokens = list(range(limit))
    left = shift.shorten(tokens, dropped)
    assert 0 < dropped < limit - 1 - keep
    assert left == tokens[:keep] + tokens[keep + dropped :]
    assert left[-1] == tokens[-1]


@given(limit=st.integers(8, 100), keep=st.integers(0, 4), count=st.integers(1, 300))
def test_to_shorten_a_whole_history_is_to_shorten_it_each_time(limit: int, keep: int, count: int) -> None:
    """The scheduler has the one, the lane the other."""
    shift, window, dropped = ContextShift(limit, keep), list[int](), 0
    for token in range(count):
        window.append(token)
        each = shift.dropped(len(window))
        window, dropped = shift.shorten(window, each), dropped + each
    assert window == shift.shorten(range(count), dropped)
    assert len(window) < limit


@pytest.mark.parametrize("keep", [-1, 7])
def test_what_is_kept_leaves_half(keep: int) -> None:
    with pytest.raises(ConfigError, match=f"0 to 6 first tokens.*got {keep}"):
        ContextShift(LIMIT, keep)


def test_a_lane_goes_on_as_a_context_alone_that_does_the_same_shifts(
    start: Callable[..., Lane], inbox: Inbox, model: Model
) -> None:
    shift, count = ContextShift(64, 3), 150
    lane = start(shift=shift)
    prompts = {"a": PROMPT, "b": PROMPT[::-1]}
    rows = [join(name, i, prompts[name], max_tokens=count, sampling=ENDLESS) for i, name in enumerate(prompts)]
    lane.post(plan(1, *rows))
    reports = inbox.reports_until(*prompts)
    for name, prompt in prompts.items():
        output = tokens_of(name, reports)
        assert len(output) == count
        assert finish_of(name, reports) is FinishReason.LENGTH
        assert shortfall(model, prompt, output, shift) < ROUNDING


def test_a_step_that_moves_cells_is_not_abandoned(start: Callable[..., Lane], inbox: Inbox) -> None:
    lanes = list[Lane]()

    def abandon(step: int) -> None:
        if step == 2:
            lanes[0].abandon(StepNumber(step))

    lanes.append(start(Script(abandon), shift=ContextShift(64, 0)))
    lanes[0].post(plan(1, join("a", 0, list(range(70, 133)), max_tokens=4, sampling=ENDLESS)))
    reports = inbox.reports_until("a")
    assert [report.abandoned for report in reports] == [False] * 4


def shortfall(model: Model, prompt: list[int], output: list[int], shift: ContextShift) -> float:
    """Return how far the worst token was from being the likeliest in a context alone that does the same shifts."""
    context, batch, first = Context(model, OPTIONS), Batch(OPTIONS.max_step_tokens), SequenceId(0)
    window, pending, worst = list(prompt), list(prompt), 0.0
    for token in output:
        batch.clear()
        batch.add(first, pending, context.length(first), output=True)
        context.decode(batch)
        logits = context.logits(batch)[0]
        worst = max(worst, float(logits.max() - logits[token]))
        window.append(token)
        pending = [token]
        dropped = shift.dropped(len(window))
        if dropped:
            window = shift.shorten(window, dropped)
            assert context.shift(first, shift.keep, dropped)
    context.close()
    return worst

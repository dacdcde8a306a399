"""Rows that together miss the target of the most urgent: who has a part in which steps."""

from __future__ import annotations

import itertools

import pytest

from llamalane.scheduler.displacement import PROGRESS
from llamalane.scheduler.request import Request, RequestState
from tests.scheduler.harness import Harness, Start
from tests.scheduler.scripted_lane import StepSeconds

LIMIT = 512
TARGET = 0.1
SETTLED = 12
"""Steps after which a lane's speed is known."""


def linear(each: float, weights: float = 0.0) -> StepSeconds:
    """A lane that takes `weights` seconds for any step, and as much more for each row."""
    return lambda rows, prompt_tokens: weights + each * rows + 0.0001 * prompt_tokens


def rows_of(harness: Harness, steps: int) -> list[set[str]]:
    """Take steps, and return whose rows had a part in each."""
    before = len(harness.lane.steps)
    harness.step(steps)
    return [{output.request for output in step.outputs} for step in harness.lane.steps[before:]]


def parts(requests: list[Request], steps: list[set[str]]) -> list[int]:
    """In how many steps each request had a part."""
    return [sum(request.id in rows for rows in steps) for request in requests]


def settle(harness: Harness, *levels: int, max_tokens: int = 300) -> list[Request]:
    """Let requests run together until it is known how long their steps take."""
    requests = [harness.submit(level, prompt=f"prompt {level} ", max_tokens=max_tokens) for level in levels]
    harness.tick()
    harness.step(SETTLED)
    return requests


def test_less_urgent_rows_take_turns_while_the_urgent_has_a_part_in_every_step(start: Start) -> None:
    harness = start([8], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.019))
    urgent, *batch = settle(harness, 1, 5, 5, 5, 5, 5, 5, 5)
    steps = rows_of(harness, 70)
    assert all(urgent.id in rows and len(rows) == 5 for rows in steps), "a step is too long, or has room for one more"
    assert parts(batch, steps) == [40] * 7, "four of seven, in turns"
    assert not harness.scheduler.counters.parks
    harness.finish()


def test_all_rows_take_part_once_the_urgent_has_ended(start: Start) -> None:
    harness = start([8], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.019))
    urgent, *batch = settle(harness, 1, 5, 5, 5, 5, 5, 5, 5)
    harness.scheduler.cancel(urgent)
    harness.step(2)
    assert rows_of(harness, 5) == [{request.id for request in batch}] * 5
    harness.finish()


def test_rows_of_the_same_level_do_not_make_each_other_sit_out(start: Start) -> None:
    harness = start([8], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.03))
    requests = settle(harness, *[2] * 8)
    assert rows_of(harness, 5) == [{request.id for request in requests}] * 5
    assert not harness.scheduler.counters.parks
    harness.finish()


@pytest.mark.parametrize(("best", "rows"), [(1, 2), (2, 4), (3, 6)])
def test_the_target_is_that_of_the_most_urgent_level(start: Start, best: int, rows: int) -> None:
    targets = {1: 0.05, 2: 0.09, 3: 0.13, 4: 0.01, 5: 0.01}
    harness = start([8], limit=LIMIT, target_itl=targets, step_seconds=linear(0.02))
    urgent, *_ = settle(harness, best, *[4] * 7)
    steps = rows_of(harness, 30)
    assert all(urgent.id in part and len(part) == rows for part in steps)
    harness.finish()


def test_several_urgent_rows_share_the_room_with_fewer_others(start: Start) -> None:
    harness = start([8], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.019))
    *urgent, _, _, _, _, _ = settle(harness, 1, 1, 1, 5, 5, 5, 5, 5)
    steps = rows_of(harness, 40)
    assert all({request.id for request in urgent} <= rows and len(rows) == 5 for rows in steps)
    harness.finish()


def test_a_hopeless_target_does_not_starve_the_others(start: Start) -> None:
    """The urgent row misses its target even when alone, so making the others wait would hardly help it."""
    harness = start([8], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.01, weights=0.3))
    requests = settle(harness, 1, 5, 5, 5, 5, 5, 5, 5)
    assert rows_of(harness, 10) == [{request.id for request in requests}] * 10
    harness.finish()


def test_a_hopeless_target_leaves_the_others_their_turns(start: Start) -> None:
    harness = start([8], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.03, weights=0.3))
    urgent, *batch = settle(harness, 1, 5, 5, 5, 5, 5, 5, 5)
    steps = rows_of(harness, 70)
    assert all(urgent.id in rows and len(rows) == 3 for rows in steps)
    assert parts(batch, steps) == [20] * 7, "two of seven, in turns"
    harness.finish()


def test_when_not_even_one_other_row_fits_the_others_wait_for_the_urgent_to_end(start: Start) -> None:
    harness = start([4], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.08))
    batch = settle(harness, 5, 5, 5, max_tokens=PROGRESS + 40)
    urgent = harness.submit(1, prompt="urgent", max_tokens=100)
    harness.tick()
    while any(request.state is not RequestState.WAITING for request in batch):
        harness.step()
    while harness.is_there(urgent):
        assert all(request.state is RequestState.WAITING for request in batch), "it came back too early"
        harness.step()
    assert all(request.state is RequestState.RUNNING for request in batch)
    harness.finish()
    assert [request.parks for request in batch] == [1, 1, 1]


def test_who_arrives_when_no_other_row_fits_waits_for_the_urgent_to_end(start: Start) -> None:
    harness = start([4], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.08))
    (urgent,) = settle(harness, 1, max_tokens=60)
    batch = harness.submit(5, max_tokens=20)
    normal = harness.submit(3, max_tokens=20)
    while urgent.state is not RequestState.DONE:
        assert batch.state is normal.state is RequestState.WAITING
        harness.step()
    assert normal.state is RequestState.RUNNING
    harness.finish()


def test_an_equal_is_let_in_though_both_then_miss_their_target(start: Start) -> None:
    harness = start([4], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.08))
    (urgent,) = settle(harness, 1)
    equal = harness.submit(1, max_tokens=20)
    harness.step()
    assert rows_of(harness, 10) == [{urgent.id, equal.id}] * 10
    harness.finish()


def test_nobody_is_displaced_for_one_who_would_make_a_more_urgent_row_late(start: Start) -> None:
    harness = start([2], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.08), max_step_tokens=16)
    settle(harness, 1, max_tokens=10)
    prompt = harness.submit(5, prompt="p" * 300, max_tokens=20)
    urgent = harness.submit(1, max_tokens=100)
    while not urgent.generated:
        harness.step()
    less_urgent = harness.submit(2, max_tokens=20)
    while not prompt.generated:
        assert prompt.state is RequestState.RUNNING
        assert less_urgent.state is RequestState.WAITING
        harness.step()
    harness.finish()


def test_one_that_was_parked_too_often_keeps_its_part(start: Start) -> None:
    harness = start([2], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.08), max_parks=1)
    (batch,) = settle(harness, 5)
    first = harness.submit(1, prompt="first", max_tokens=20)
    while first.state is not RequestState.DONE or batch.state is not RequestState.RUNNING:
        harness.step()
    assert batch.parks == 1
    second = harness.submit(1, prompt="second", max_tokens=20)
    while len(second.generated) < 3:
        harness.step()
    assert rows_of(harness, 10) == [{batch.id, second.id}] * 10
    harness.finish()


def test_one_admitted_by_share_is_let_in_and_has_a_part_in_every_second_step_at_least(start: Start) -> None:
    harness = start([4], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.08), share=2)
    (urgent,) = settle(harness, 1)
    sheltered = harness.submit(5, max_tokens=40)
    harness.tick()
    assert sheltered.sheltered
    assert sheltered.state is RequestState.RUNNING
    harness.step(2)
    steps = rows_of(harness, 30)
    assert all(urgent.id in rows for rows in steps)
    assert all(sheltered.id in rows or sheltered.id in after for rows, after in itertools.pairwise(steps))
    harness.finish()
    assert sheltered.parks == 0


def test_many_sheltered_rows_each_have_a_part_in_every_second_step(start: Start) -> None:
    """Even where that makes the urgent row miss its target."""
    harness = start([6], limit=LIMIT, target_itl=TARGET, step_seconds=linear(0.04), share=1)
    urgent, *sheltered = settle(harness, 1, 5, 5, 5, 5, 5)
    assert all(request.sheltered for request in sheltered)
    steps = rows_of(harness, 30)
    assert all(urgent.id in rows for rows in steps)
    for request in sheltered:
        assert all(request.id in rows | after for rows, after in itertools.pairwise(steps))
    harness.finish()

"""What a step costs the scheduler, in functions called: what counts is how it grows, and that it stays so low."""

from __future__ import annotations

import pytest

from tests.counting import Calls
from tests.scheduler.harness import Harness, Start

STEPS = 64
"""Two blocks of cells: within so many steps everything happens that happens while rows decode."""
PER_STEP, PER_ROW = 120, 36
"""So many functions may be called for a step, and so many more for each of its rows."""


def decoding(start: Start, rows: int, waiting: int) -> Harness:
    """Let so many rows decode, all of one level, beside a queue of that length."""
    harness = start((rows,), limit=512)
    for _ in range(rows):
        harness.submit(max_tokens=400)
    harness.tick()
    for _ in range(waiting):
        harness.submit(max_tokens=400)
    harness.step(20)
    return harness


def calls(start: Start, rows: int, waiting: int) -> float:
    """Return how many functions the scheduler calls for each step."""
    harness = decoding(start, rows, waiting)
    before = [len(request.generated) for request in harness.requests[:rows]]
    calls = Calls()
    for _ in range(STEPS):
        harness.lane.step()
        with calls.counted():
            harness.scheduler.tick()
    assert [len(request.generated) - STEPS for request in harness.requests[:rows]] == before, "some row had no part"
    return calls.count / STEPS


def test_a_step_costs_the_same_however_many_wait(start: Start) -> None:
    few = calls(start, 8, 1)
    assert calls(start, 8, 30) == pytest.approx(few, rel=0.01)
    assert calls(start, 8, 300) == pytest.approx(few, rel=0.01)


def test_a_step_costs_no_more_than_in_proportion_to_its_rows(start: Start) -> None:
    few, more, many = (calls(start, rows, 1) for rows in (8, 16, 32))
    assert few < more < 2 * few
    assert more < many < 2 * more


@pytest.mark.parametrize("waiting", [0, 1])
@pytest.mark.parametrize("rows", [1, 8, 32])
def test_a_step_calls_few_functions(start: Start, rows: int, waiting: int) -> None:
    assert calls(start, rows, waiting) < PER_STEP + PER_ROW * rows

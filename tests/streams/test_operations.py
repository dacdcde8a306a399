"""What a step costs a lane's thread, in functions called beside llama.cpp's, and in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from statistics import median

import pytest

from llamalane.streams import SamplingParameters
from llamalane.streams.lane import Lane
from llamalane.streams.llama import ContextOptions
from tests.counting import Calls
from tests.streams.lane_rig import ENDLESS, Inbox, Script
from tests.streams.plans import join, plan

FIRST, STEPS = 8, 16
"""The steps that are counted come after the first ones, in which rows join and their prompts are computed."""
PER_STEP, PER_ROW = 110, 20
"""So many functions may be called for a step, and so many more for each of its rows, with greedy sampling."""
PER_DRAW = 35
"""So many more for a token that is drawn after llama-server's default cuts."""
STEP_BYTES, ROW_BYTES = 7_000, 300
"""So much memory may a step take at once, and so much more for each of its rows."""
DRAWN = SamplingParameters(seed=1, ignore_eos=True)


class CountedSteps(Calls):
    """Counts on a lane's thread, from one step to another."""

    def __call__(self, step: int) -> None:
        if step == FIRST:
            self.start()
        elif step == FIRST + STEPS:
            self.stop()


def calls(start: Callable[..., Lane], inbox: Inbox, rows: int, sampling: SamplingParameters = ENDLESS) -> float:
    """Return how many functions a lane calls for each step of so many decoding rows."""
    counted = CountedSteps()
    run(start, inbox, rows, sampling, counted)
    return counted.count / STEPS


def run(
    start: Callable[..., Lane],
    inbox: Inbox,
    rows: int,
    sampling: SamplingParameters,
    before_step: Callable[[int], None],
) -> None:
    """Let a lane compute some more steps than are looked at, of so many decoding rows."""
    options = ContextOptions(cells=256 * rows, sequences=rows, max_step_tokens=64, micro_batch=64, threads=1)
    lane = start(Script(before_step=before_step), options=options)
    names = [f"request-{row}" for row in range(rows)]
    joins = [
        join(name, row, max_tokens=FIRST + STEPS + 2, sampling=sampling, cells=250) for row, name in enumerate(names)
    ]
    lane.post(plan(1, *joins))
    inbox.reports_until(*names)


@pytest.mark.parametrize("sampling", [ENDLESS, DRAWN])
def test_a_step_costs_no_more_than_in_proportion_to_its_rows(
    start: Callable[..., Lane], inbox: Inbox, sampling: SamplingParameters
) -> None:
    few, more, many = (calls(start, inbox, rows, sampling) for rows in (4, 8, 16))
    assert few < more < 2 * few
    assert more < many < 2 * more


@pytest.mark.parametrize("rows", [1, 8, 16])
def test_a_step_calls_few_functions(start: Callable[..., Lane], inbox: Inbox, rows: int) -> None:
    assert calls(start, inbox, rows) < PER_STEP + PER_ROW * rows
    assert calls(start, inbox, rows, DRAWN) < PER_STEP + (PER_ROW + PER_DRAW) * rows


class TracedSteps:
    """Takes note of the most memory that Python and numpy have at once in each step, beyond what they had before it.

    On a lane's thread, from one step to another.
    """

    def __init__(self) -> None:
        self.peaks: list[int] = []
        self._before = 0

    def __call__(self, step: int) -> None:
        if step == FIRST:
            tracemalloc.start()
        elif FIRST < step <= FIRST + STEPS:
            self.peaks.append(tracemalloc.get_traced_memory()[1] - self._before)
        if step == FIRST + STEPS:
            tracemalloc.stop()
        elif step >= FIRST:
            tracemalloc.reset_peak()
            self._before = tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("sampling", [ENDLESS, DRAWN])
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_a_step_takes_little_memory_and_copies_no_logits(
    start: Callable[..., Lane], inbox: Inbox, rows: int, sampling: SamplingParameters
) -> None:
    traced = TracedSteps()
    run(start, inbox, rows, sampling, traced)
    assert len(traced.peaks) == STEPS
    assert median(traced.peaks) < STEP_BYTES + ROW_BYTES * rows

"""What a step costs a lane's thread, in functions called beside llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable

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
    options = ContextOptions(cells=256 * rows, sequences=rows, max_step_tokens=64, micro_batch=64, threads=1)
    lane = start(Script(before_step=counted), options=options)
    names = [f"request-{row}" for row in range(rows)]
    joins = [
        join(name, row, max_tokens=FIRST + STEPS + 2, sampling=sampling, cells=250) for row, name in enumerate(names)
    ]
    lane.post(plan(1, *joins))
    inbox.reports_until(*names)
    return counted.count / STEPS


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

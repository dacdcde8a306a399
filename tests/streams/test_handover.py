"""A lane waits a moment for whoever follows a row that has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from llamalane.ids import PlanVersion, RequestId, StepNumber
from llamalane.streams import FinishReason, RowOutput, StepPlan, StepReport, StepTimes
from llamalane.streams import lane as lane_module
from llamalane.streams.lane import HANDOVER, Lane, patience_after
from tests.streams.lane_rig import ENDLESS, PROMPT, TIMEOUT, Inbox
from tests.streams.plans import edit, grant, join, plan

Start = Callable[..., Lane]
SHORT = join("short", 0, PROMPT, max_tokens=1, sampling=ENDLESS)
LONG = join("long", 1, PROMPT, max_tokens=30, sampling=ENDLESS)


def expecting(step: int, number: int, *changes: object) -> StepPlan:
    """A plan of somebody who has heard of `step`, and has requests waiting."""
    return replace(plan(number, *changes), successors=True, heard=StepNumber(step))  # type: ignore[arg-type]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes wait as long as it takes."""

    def always(report: StepReport) -> float:
        return TIMEOUT if any(output.ended for output in report.outputs) else 0.0

    monkeypatch.setattr(lane_module, "patience_after", always)


@pytest.mark.usefixtures("patience")
def test_a_successor_has_its_first_rows_in_the_next_step(start: Start, inbox: Inbox) -> None:
    lane = start()
    lane.post(expecting(0, 1, SHORT, LONG))
    assert inbox.report().outputs[0].ended
    lane.post(expecting(1, 2, join("next", 0, PROMPT, max_tokens=3, sampling=ENDLESS)))
    following = inbox.report()
    assert (following.step, following.started) == (2, ("next",))
    lane.post(plan(3))


@pytest.mark.usefixtures("patience")
def test_an_older_plan_is_carried_out_and_not_taken_for_the_answer(start: Start, inbox: Inbox) -> None:
    lane = start()
    lane.post(expecting(0, 1, SHORT, LONG))
    inbox.report()
    lane.post(expecting(0, 2, grant("long", 200)))
    lane.post(expecting(1, 3, edit(2, grant("long", 200)), join("next", 0, PROMPT, max_tokens=3, sampling=ENDLESS)))
    assert inbox.report().started == ("next",)
    lane.post(plan(4))


def test_without_an_answer_the_lane_goes_on(start: Start, inbox: Inbox) -> None:
    start().post(expecting(0, 1, SHORT, LONG))
    assert [report.step for report in inbox.reports_until("short", "long")] == list(range(1, 31))


@pytest.mark.usefixtures("patience")
def test_a_lane_to_which_nobody_comes_does_not_wait(start: Start, inbox: Inbox) -> None:
    start().post(plan(1, SHORT, LONG))
    assert len(inbox.reports_until("short", "long")) == 30


@pytest.mark.usefixtures("patience")
def test_a_lane_that_waits_can_be_closed(start: Start, inbox: Inbox) -> None:
    lane = start()
    lane.post(expecting(0, 1, SHORT, LONG))
    inbox.report()
    lane.close()


def step(rows: int, ended: int, decode: float) -> StepReport:
    """A step of so many rows, of which some have ended."""
    outputs = tuple(
        RowOutput(RequestId(f"row-{row}"), 70, FinishReason.LENGTH if row < ended else None) for row in range(rows)
    )
    times = StepTimes(begin=0.0, decode=decode, sample=0.001, idle=0.0)
    return StepReport("lane", StepNumber(1), PlanVersion(1), outputs=outputs, times=times)


def test_a_lane_waits_no_longer_than_the_rows_that_ended_would_have_had_of_the_next_step() -> None:
    assert patience_after(step(8, 0, 0.04)) == 0
    assert patience_after(step(8, 1, 0.012)) == pytest.approx(0.0015)
    assert patience_after(step(8, 2, 0.006)) == pytest.approx(0.0015)
    assert patience_after(step(8, 1, 0.04)) == HANDOVER, "never for long"
    assert patience_after(step(16, 1, 0.004)) == 0, "waiting would take longer"

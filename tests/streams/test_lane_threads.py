"""A lane computes with fewer threads while its own does not run, and its outputs stay right."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from llamalane.errors import ContextError
from llamalane.streams import Device
from llamalane.streams.lane import Lane
from llamalane.streams.lane_thread import StepTimer
from llamalane.streams.llama import Context, Model
from tests.streams.lane_rig import ENDLESS, OPTIONS, PROMPT, ROUNDING, Inbox, Script, shortfall, tokens_of
from tests.streams.plans import join, plan

Start = Callable[..., Lane]
STEPS = 24


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each step with several threads seem to have taken 0.1 s, of which the lane's thread ran for half."""

    def stop(timer: StepTimer) -> None:
        timer.end = timer.begin + 0.1
        timer.ran = 0.05 if timer.threads > 1 else 0.1

    monkeypatch.setattr(StepTimer, "stop", stop)


@pytest.mark.usefixtures("starved")
def test_a_lane_whose_thread_does_not_run_gives_up_threads(
    start: Start, inbox: Inbox, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    with caplog.at_level(logging.DEBUG, "llamalane.streams"):
        start(script, threads=2).post(plan(1, join("a", 0, PROMPT, max_tokens=STEPS, sampling=ENDLESS)))
        reports = inbox.reports_until("a")
    used = [report.times.threads for report in reports if report.times is not None]
    assert used[0] == 2
    assert used[-1] == 1
    assert sorted(used, reverse=True) == used
    assert script.thread_counts == [1]
    assert "lane lane computes with 1 of its 2 threads now" in caplog.messages
    assert shortfall(model, PROMPT, tokens_of("a", reports)) < ROUNDING


@pytest.mark.usefixtures("starved")
@pytest.mark.parametrize("options", [{"adaptive": False}, {"device": Device.GPU}])
def test_a_lane_that_should_not_keeps_its_threads(start: Start, inbox: Inbox, options: dict[str, object]) -> None:
    script = Script()
    start(script, threads=2, **options).post(plan(1, join("a", 0, PROMPT, max_tokens=STEPS, sampling=ENDLESS)))
    assert {report.times.threads for report in inbox.reports_until("a") if report.times is not None} == {2}
    assert script.thread_counts == []


@pytest.mark.usefixtures("starved")
def test_a_new_context_begins_with_all_threads(start: Start, inbox: Inbox) -> None:
    failing = STEPS

    def fail(step: int) -> None:
        if step == failing:
            raise ContextError("broken")

    lane = start(Script(fail), threads=2)
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=2 * STEPS, sampling=ENDLESS)))
    *_, last = [inbox.report() for _ in range(failing - 1)]
    assert last.times is not None
    assert last.times.threads == 1
    inbox.failure()
    inbox.ready()
    lane.post(plan(2, join("b", 0, PROMPT, max_tokens=2, sampling=ENDLESS), epoch=1))
    first = inbox.report()
    assert first.times is not None
    assert first.times.threads == 2


def test_a_timer_tells_what_the_thread_ran(start: Start, inbox: Inbox) -> None:
    start(threads=1).post(plan(1, join("a", 0, PROMPT, max_tokens=2, sampling=ENDLESS)))
    times = [report.times for report in inbox.reports_until("a")]
    assert all(one is not None and one.threads == 1 and one.decode > 0 for one in times)


def test_a_context_needs_a_thread(model: Model) -> None:
    context = Context(model, OPTIONS)
    with pytest.raises(ContextError, match="at least 1 thread; got 0"):
        context.set_threads(0)
    context.close()
    with pytest.raises(ContextError, match="closed"):
        context.set_threads(1)

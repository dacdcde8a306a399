from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from llamalane.errors import ContextError, DecodeError
from llamalane.streams import LaneFailed
from llamalane.streams.lane import Lane
from llamalane.streams.lane_thread import MAX_FAILURES
from llamalane.streams.llama import Model
from tests.streams.lane_rig import ENDLESS, PROMPT, ROUNDING, TIMEOUT, Inbox, Script, shortfall, tokens_of
from tests.streams.plans import join, leave, plan


def failing_in(*steps: int, error: Exception | None = None) -> Script:
    def fail(step: int) -> None:
        if step in steps:
            raise error or DecodeError(-3)

    return Script(fail)


def lane_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("llamalane-")]


def test_a_failed_step_costs_the_context_and_the_lane_builds_another(
    start: Callable[..., Lane], inbox: Inbox, model: Model
) -> None:
    script = failing_in(3)
    lane = start(script)
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=5, sampling=ENDLESS)))
    first = [inbox.report(), inbox.report()]
    failure = inbox.failure()
    assert (failure.lane, failure.epoch, failure.down) == ("lane", 1, False)
    assert isinstance(failure.error, DecodeError)
    assert failure.error.code == -3
    inbox.ready()
    assert (script.opened, script.closed) == (2, 1)
    tokens = [*PROMPT, *tokens_of("a", first)]
    lane.post(plan(2, join("a", 0, tokens, generated=2, max_tokens=3, sampling=ENDLESS), epoch=1))
    reports = inbox.reports_until("a")
    assert reports[0].prefill_tokens == len(tokens), "the new context was taken for the old one"
    assert reports[0].times is not None
    assert reports[0].times.idle == 0
    assert shortfall(model, PROMPT, tokens_of("a", [*first, *reports])) < ROUNDING
    assert [report.step for report in (*first, *reports)] == [1, 2, 3, 4, 5]


def test_plans_made_before_the_failure_are_dropped(start: Callable[..., Lane], inbox: Inbox) -> None:
    in_step, go_on, next_step = threading.Event(), threading.Event(), threading.Event()

    def follow(step: int) -> None:
        if step == 1:
            raise DecodeError(-3)
        if step == 2:
            in_step.set()
            assert go_on.wait(TIMEOUT)
        else:
            next_step.set()  # the lane has been at its mailbox since

    lane = start(Script(follow))
    lane.post(plan(1, join("a", max_tokens=5)))
    inbox.failure()
    inbox.ready()
    lane.post(plan(2, join("b", 0, PROMPT, max_tokens=100, sampling=ENDLESS), epoch=1))
    assert in_step.wait(TIMEOUT)
    lane.post(plan(3, leave("b"), join("stale", 1, PROMPT), epoch=0))
    go_on.set()
    assert next_step.wait(TIMEOUT)
    lane.post(plan(3, join("c", 2, PROMPT, max_tokens=2), epoch=1))
    reports = inbox.reports_until("b", "c")
    assert tokens_of("stale", reports) == []
    assert len(tokens_of("b", reports)) == 100, "the old plan took it out"
    assert len(tokens_of("c", reports)) == 2
    assert all(report.left == () for report in reports)


def test_a_lane_that_fails_three_times_in_a_row_is_out(start: Callable[..., Lane], inbox: Inbox) -> None:
    script = failing_in(1, 2, 3)
    lane = start(script)
    failures: list[LaneFailed] = []
    for epoch in range(MAX_FAILURES):
        lane.post(plan(epoch + 1, join("a"), epoch=epoch))
        failures.append(inbox.failure())
        if not failures[-1].down:
            inbox.ready()
    assert [(failure.epoch, failure.down) for failure in failures] == [(1, False), (2, False), (3, True)]
    assert (script.opened, script.closed, script.steps) == (3, 3, 3)
    lane.close()
    assert lane_threads() == []
    lane.post(plan(9, join("b"), epoch=3))
    lane.close()
    assert inbox.empty()


def test_a_step_between_failures_starts_the_count_anew(start: Callable[..., Lane], inbox: Inbox) -> None:
    lane = start(failing_in(2, 4, 6, 8))
    for epoch in range(4):
        lane.post(plan(epoch + 1, join("a", 0, PROMPT, max_tokens=5, sampling=ENDLESS), epoch=epoch))
        inbox.report()
        assert not inbox.failure().down
        inbox.ready()


def test_a_context_that_cannot_be_built_anew_counts_as_a_failure(start: Callable[..., Lane], inbox: Inbox) -> None:
    def refuse_the_second(number: int) -> None:
        if number == 2:
            raise MemoryError("no room for cells")

    script = failing_in(1)
    script.before_open = refuse_the_second
    lane = start(script)
    lane.post(plan(1, join("a")))
    assert (inbox.failure().epoch, script.closed) == (1, 1)
    second = inbox.failure()
    assert (second.epoch, second.down) == (2, False)
    assert isinstance(second.error, ContextError)
    assert str(second.error) == "MemoryError: no room for cells"
    inbox.ready()
    lane.post(plan(2, join("b", max_tokens=2), epoch=2))
    assert len(tokens_of("b", inbox.reports_until("b"))) == 2


def test_a_lane_without_any_context_left_is_out(start: Callable[..., Lane], inbox: Inbox) -> None:
    def refuse_all_but_the_first(number: int) -> None:
        if number > 1:
            raise ContextError("no room")

    script = failing_in(1)
    script.before_open = refuse_all_but_the_first
    lane = start(script)
    lane.post(plan(1, join("a")))
    assert [inbox.failure().down for _ in range(3)] == [False, False, True]
    lane.close()
    assert inbox.empty()
    assert script.opened == 3


def test_a_bug_is_told_as_a_failed_context_and_logged_whole(
    start: Callable[..., Lane], inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    lane = start(failing_in(1, error=ZeroDivisionError("oh no")))
    lane.post(plan(1, join("a")))
    failure = inbox.failure()
    assert isinstance(failure.error, ContextError)
    assert str(failure.error) == "ZeroDivisionError: oh no"
    inbox.ready()
    (record,) = [record for record in caplog.records if record.name == "llamalane.streams.lane_thread"]
    assert "lane lane failed (1 in a row)" in record.message
    assert record.exc_info


def test_all_rows_are_gone_after_a_failure(start: Callable[..., Lane], inbox: Inbox) -> None:
    lane = start(failing_in(2))
    lane.post(plan(1, *(join(name, i, PROMPT, max_tokens=9, sampling=ENDLESS) for i, name in enumerate("abcd"))))
    inbox.report()
    inbox.failure()
    inbox.ready()
    lane.post(plan(2, join("e", 0, PROMPT, max_tokens=3, sampling=ENDLESS), epoch=1))
    reports = inbox.reports_until("e")
    assert {output.request for report in reports for output in report.outputs} == {"e"}


def test_closing_while_the_lane_recovers_frees_everything(start: Callable[..., Lane], inbox: Inbox) -> None:
    script = failing_in(1)
    lane = start(script)
    lane.post(plan(1, join("a")))
    inbox.failure()
    lane.close()
    assert (script.opened, script.closed) == (2, 2)

"""The scheduler's books of one lane: no edit is lost when a plan replaces one that was not taken."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamalane.errors import DecodeError
from llamalane.ids import PlanVersion, RequestId, StepNumber
from llamalane.scheduler.ledger import STRETCH, UNPROTECTED, LaneLedger
from llamalane.scheduler.pacing import StepTimeModel
from llamalane.scheduler.priority import LEVELS
from llamalane.streams import LaneFailed, Leave, StepPlan, StepReport, StepTimes
from tests.scheduler.harness import Harness, Start

TARGET = 0.1


def ledger() -> LaneLedger:
    harness = Harness()
    return LaneLedger(harness.pool.lanes[0], dict.fromkeys(LEVELS, TARGET))


def leave(number: int) -> Leave:
    return Leave(RequestId(f"request-{number}"), keep=0)


def plan_of(books: LaneLedger) -> StepPlan:
    plan = books.next_plan(0.0)
    assert plan is not None
    return plan


def report(version: PlanVersion, prefill_tokens: int = 0, seconds: float = 0.01, rows: int = 0) -> StepReport:
    times = StepTimes(begin=0.0, decode=seconds, sample=0.0, idle=0.0)
    return StepReport("lane-0", StepNumber(1), version, decode_rows=rows, prefill_tokens=prefill_tokens, times=times)


def teach(books: LaneLedger, row_seconds: float) -> None:
    """Let the lane be known for steps of so many seconds with one row, and 1 ms for each prompt token."""
    books.model = StepTimeModel()
    books.model.observe(report(PlanVersion(1), seconds=row_seconds, rows=1))
    books.model.observe(report(PlanVersion(1), prefill_tokens=100, seconds=0.1))


actions = st.lists(st.sampled_from(["edit", "plan", "take", "hear"]), max_size=60)


@given(actions)
@settings(deadline=None)
def test_a_lane_sees_every_edit_once_and_in_order_whichever_plans_it_takes(actions: list[str]) -> None:
    books = ledger()
    mailbox: StepPlan | None = None
    version = PlanVersion(0)
    reports: list[StepReport] = []
    made: list[Leave] = []
    seen: list[object] = []
    for action in [*actions, "plan", "take"]:
        if action == "edit":
            made.append(leave(len(made)))
            books.edit(made[-1])
        elif action == "plan":
            mailbox = books.next_plan(0.0) or mailbox
        elif action == "take" and mailbox is not None:
            seen.extend(edit.change for edit in mailbox.edits if edit.version > version)
            version, mailbox = mailbox.version, None
            reports.append(report(version))
        elif action == "hear" and reports:
            books.observe(reports.pop(0), 0.0)
    assert seen == made


def test_an_edit_is_repeated_until_it_is_acknowledged() -> None:
    books = ledger()
    books.edit(leave(1))
    first = plan_of(books)
    books.edit(leave(2))
    second = plan_of(books)
    assert [edit.change for edit in second.edits] == [leave(1), leave(2)]
    assert [edit.version for edit in second.edits] == [first.version, second.version]
    books.observe(report(first.version), 0.0)
    books.edit(leave(3))
    assert [edit.change for edit in plan_of(books).edits] == [leave(2), leave(3)]


def test_without_news_there_is_no_plan() -> None:
    books = ledger()
    assert books.next_plan(0.0) is None
    books.edit(leave(1))
    plan_of(books)
    assert books.next_plan(0.0) is None


def test_a_failure_clears_what_the_lost_context_should_have_done() -> None:
    books = ledger()
    books.edit(leave(1))
    before = plan_of(books)
    books.edit(leave(2))
    books.fail(LaneFailed("lane-0", epoch=1, error=DecodeError(-3), down=False))
    assert books.next_plan(0.0) is None
    books.edit(leave(3))
    after = plan_of(books)
    assert [edit.change for edit in after.edits] == [leave(3)]
    assert after.epoch == 1 > before.epoch
    assert after.version > before.version
    assert books.failures == 1
    assert not books.down


def test_a_new_prefill_budget_is_told_only_while_a_prompt_waits_and_only_if_it_matters(start: Start) -> None:
    harness = start(limit=512)
    request = harness.submit(prompt="x" * 400)
    harness.tick()
    books = harness.scheduler.ledgers["lane-0"]
    assert books.next_plan(0.0) is None
    books.observe(report(PlanVersion(1), prefill_tokens=100, seconds=0.1), 0.0)
    told = plan_of(books)
    assert told.prefill_tokens == 100 * TARGET / 0.1 * UNPROTECTED
    books.observe(report(told.version, prefill_tokens=100, seconds=0.105), 0.0)
    assert books.next_plan(0.0) is None, "a change too small to matter"
    harness.scheduler.cancel(request)
    harness.run()
    books.observe(report(told.version, prefill_tokens=100, seconds=2.0), 0.0)
    assert books.next_plan(0.0) is None, "no prompt waits"


@pytest.mark.parametrize(("level", "tokens"), [(1, 300), (2, 300), (3, 40), (5, 40)])
def test_outputs_are_protected_from_prompts_that_are_not_more_urgent(start: Start, level: int, tokens: int) -> None:
    harness = start([2], limit=512)
    harness.submit(3, max_tokens=50)
    harness.tick()
    harness.step(2)
    teach(harness.scheduler.ledgers["lane-0"], row_seconds=0.06)
    harness.submit(level, prompt="x" * 300)
    harness.tick()
    assert harness.lane.plan is not None
    assert harness.lane.plan.prefill_tokens == pytest.approx(tokens, abs=1)


def test_a_prompt_more_urgent_than_all_outputs_has_its_steps_for_itself(start: Start) -> None:
    harness = start([4], limit=512)
    harness.submit(4, max_tokens=50)
    harness.tick()
    harness.step(2)
    patient = harness.submit(5, prompt="x" * 150)
    urgent = harness.submit(1, prompt="y" * 20, max_tokens=50)
    harness.tick()
    assert harness.lane.plan is not None
    assert harness.lane.plan.prefill_tokens == 20
    harness.step()
    assert urgent.first_token_at is not None
    assert patient.id not in harness.lane.steps[-1].started
    while patient.first_token_at is None:
        harness.step()
    assert max(step.prefill_tokens for step in harness.lane.steps) > 20, "the other prompt is never told of its room"


def test_after_a_restart_a_request_is_a_prompt_again(start: Start) -> None:
    harness = start([1], limit=512)
    request = harness.submit(prompt="x" * 300, max_tokens=20)
    harness.tick()
    while not request.generated:
        harness.step()
    harness.lane.fail()
    harness.lane.reopen()
    harness.tick()
    books = harness.scheduler.ledgers["lane-0"]
    books.observe(report(PlanVersion(0), prefill_tokens=100, seconds=9.0), 0.0)
    assert plan_of(books).prefill_tokens < 90, "the lane goes on too fast"


def test_the_time_of_all_steps_is_summed() -> None:
    books = ledger()
    for _ in range(3):
        books.observe(
            StepReport(
                "lane-0",
                StepNumber(7),
                PlanVersion(0),
                times=StepTimes(begin=0.0, decode=0.5, sample=0.25, idle=0.125),
            ),
            0.0,
        )
    books.observe(StepReport("lane-0", StepNumber(7), PlanVersion(0)), 0.0)
    assert (books.steps, books.decode_seconds, books.sample_seconds, books.idle_seconds) == (7, 1.5, 0.75, 0.375)


def test_the_threads_of_the_last_step_are_told() -> None:
    books = ledger()
    assert books.threads == 1
    for threads, told in ((2, 2), (0, 2), (1, 1)):
        times = StepTimes(begin=0.0, decode=0.5, sample=0.0, idle=0.0, threads=threads)
        books.observe(StepReport("lane-0", StepNumber(1), PlanVersion(0), times=times), 0.0)
        assert books.threads == told


def test_a_lane_that_waits_for_a_successor_is_answered_whoever_comes(start: Start) -> None:
    harness = start([2], limit=512)
    harness.submit(max_tokens=2)
    harness.submit(max_tokens=40)
    third = harness.submit(max_tokens=40)
    harness.tick()
    books = harness.scheduler.ledgers["lane-0"]
    harness.step()
    harness.lane.step()  # the first one ends
    harness.scheduler.cancel(third)
    harness.tick()
    assert harness.lane.plan is not None, "nobody comes, but the lane has to be told"
    assert harness.lane.plan.heard == books.steps == 2
    assert not harness.lane.plan.successors


def test_a_long_prompt_stretches_steps_less_than_a_short_one(start: Start) -> None:
    harness = start([3], limit=4096, target_itl=0.2)
    harness.submit(3, max_tokens=50)
    harness.tick()
    harness.step(2)
    teach(harness.scheduler.ledgers["lane-0"], row_seconds=0.04)
    short = harness.submit(3, prompt="x" * 300)
    harness.tick()
    assert harness.lane.plan is not None
    assert harness.lane.plan.prefill_tokens == pytest.approx((0.2 - 0.04) * 1000, abs=1)
    harness.scheduler.cancel(short)
    harness.submit(3, prompt="y" * 3000)
    harness.tick()
    assert harness.lane.plan.prefill_tokens == pytest.approx((STRETCH - 1) * 0.04 * 1000, abs=1)

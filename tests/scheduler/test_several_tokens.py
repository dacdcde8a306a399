"""Requests that gain several tokens in a step: the scheduler takes them one after the other."""

from __future__ import annotations

import pytest

from llamalane.ids import PlanVersion, StepNumber
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.handover import HandoverPolicy, LaneRole
from llamalane.scheduler.lane_roles import LaneRoles
from llamalane.scheduler.parking import ParkingCosts
from llamalane.scheduler.request import BLOCK, RequestState
from llamalane.streams import FinishReason, StepReport, StepTimes
from tests.scheduler.harness import Start, error_of, result_of
from tests.scheduler.scripted_lane import letters_with_an_end, spoken

AT_ONCE = 5


@pytest.mark.parametrize("length", range(1, 13))
def test_an_output_has_all_its_tokens_and_no_more(start: Start, length: int) -> None:
    harness = start(at_once=AT_ONCE)
    request = harness.submit(prompt="abc", max_tokens=length)
    harness.finish()
    result = result_of(request)
    assert len(result.tokens) == length
    assert result.finish_reason is FinishReason.LENGTH
    assert harness.scheduler.counters.completion_tokens == length
    # The first token comes with the prompt, and five with each step after it.
    assert len(harness.lane.steps) == 1 + -(-(length - 1) // AT_ONCE)
    ledger = harness.scheduler.ledgers["lane-0"]
    assert ledger.accepted_tokens == ledger.drafted_tokens == length - len(harness.lane.steps)
    assert ledger.step_tokens.snapshot().sum == 3 + length - 1


@pytest.mark.parametrize("place", range(2, 12))
def test_what_came_after_a_stop_string_is_dropped(start: Start, place: int) -> None:
    harness = start(at_once=AT_ONCE)
    stop = spoken("abc", 20)[place : place + 2]
    request = harness.submit(prompt="abc", max_tokens=20, stop=[stop])
    other = harness.submit(prompt="xyz", max_tokens=20)
    harness.finish()
    result = result_of(request)
    assert result.text == spoken("abc", place)
    assert result.finish_reason is FinishReason.STOP
    assert len(result.tokens) == place + 2
    assert len(result_of(other).tokens) == 20


@pytest.mark.parametrize("prompt", ["abc", "the end", "one", "two", "three"])
def test_an_end_among_several_tokens_is_the_end(start: Start, prompt: str) -> None:
    harness = start(at_once=AT_ONCE, speak=letters_with_an_end)
    harness.submit(prompt=prompt, max_tokens=40)
    harness.finish()


def test_who_is_cancelled_keeps_what_the_books_know(start: Start) -> None:
    harness = start(at_once=AT_ONCE)
    request = harness.submit(prompt="abc", max_tokens=40)
    harness.tick()
    harness.step(3)
    said = len(request.generated)
    assert said == 1 + 2 * AT_ONCE
    harness.scheduler.cancel(request)
    harness.step()
    assert request.state is not RequestState.RUNNING
    harness.run()
    assert error_of(request)
    again = harness.submit(prompt="abc" + spoken("abc", said), max_tokens=5)
    harness.finish()
    assert again.cached == 3 + said - 1
    assert EventKind.ENDED in harness.kinds(request)


def test_who_gains_several_tokens_grows_in_time(start: Start) -> None:
    harness = start(at_once=9, limit=256)
    request = harness.submit(prompt="abc", max_tokens=5 * BLOCK)
    harness.finish()
    assert len(result_of(request).tokens) == 5 * BLOCK
    assert len(harness.lane.steps) < 5 * BLOCK // 9 + 8, "it hardly ever waits for cells"


def test_after_a_failure_of_the_lane_nothing_is_missing(start: Start) -> None:
    harness = start(at_once=AT_ONCE)
    harness.submit(prompt="abc", max_tokens=30)
    harness.tick()
    harness.step(3)
    harness.lane.fail()
    harness.lane.reopen()
    harness.finish()


def test_a_step_with_drafts_is_not_taken_for_one_that_prompts_elsewhere_slow_down(start: Start) -> None:
    harness = start((1, 1), roles=[LaneRole.PREFILL, LaneRole.DECODE])
    policy = HandoverPolicy({"lane-0": LaneRole.PREFILL}, ParkingCosts(0, None))
    roles = LaneRoles(harness.scheduler.ledgers, policy)
    seen: list[float] = []
    policy.slowdown.observe = lambda lane, rows, seconds, *, disturbed: seen.append(seconds)  # type: ignore[method-assign]
    for seconds, drafted in ((0.25, 0), (0.5, 8), (0.25, 0)):
        times = StepTimes(begin=0.0, decode=seconds, sample=0.0, idle=0.0)
        roles.observe(
            StepReport("lane-1", StepNumber(1), PlanVersion(1), decode_rows=1, drafted_tokens=drafted, times=times)
        )
    assert seen == [0.25]

"""Steps that are broken off from another thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from llamalane.ids import StepNumber
from llamalane.streams import Change, StepReport
from llamalane.streams.lane import Lane
from llamalane.streams.llama import Model, ModelOptions
from tests.models.tiny_gguf import Kind
from tests.streams.lane_rig import (
    ENDLESS,
    PROMPT,
    ROUNDING,
    Hold,
    Inbox,
    Script,
    open_lane,
    shortfall,
    tokens_of,
)
from tests.streams.plans import join, leave, park, plan

LENGTH = 8
Start = Callable[..., Lane]


@pytest.fixture
def hybrid_model(tiny_models: Mapping[Kind, Path]) -> Iterator[Model]:
    with Model(ModelOptions(path=tiny_models[Kind.HYBRID])) as model:
        yield model


def request(name: str, sequence: int = 0, max_tokens: int = LENGTH) -> Change:
    return join(name, sequence, PROMPT, max_tokens=max_tokens, sampling=ENDLESS)


class EachStep:
    """Abandons the steps of a lane, in its own thread just before they are computed, as `numbers` says for each."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self.lane: Lane | None = None
        self._numbers = numbers

    def __call__(self, step: int) -> None:
        if step in self._numbers:
            assert self.lane is not None
            self.lane.abandon(StepNumber(self._numbers[step]))


def run(start: Start, inbox: Inbox, numbers: Mapping[int, int], **options: object) -> list[StepReport]:
    """Let a request run from beginning to end while steps are abandoned."""
    interfere = EachStep(numbers)
    interfere.lane = start(Script(interfere), **options)
    interfere.lane.post(plan(1, request("a"), prefill_tokens=7))
    return inbox.reports_until("a")


def abandoned(reports: list[StepReport]) -> list[int]:
    return [report.step for report in reports if report.abandoned]


def test_an_abandoned_step_gives_nothing_and_is_told(start: Start, inbox: Inbox, model: Model) -> None:
    hold = Hold(5)
    lane = start(Script(hold))
    lane.post(plan(1, request("a")))
    hold.wait()
    lane.abandon(StepNumber(5))
    hold.let_go()
    reports = inbox.reports_until("a")
    assert [report.step for report in reports] == list(range(1, LENGTH + 2))
    assert abandoned(reports) == [5]
    fifth = reports[4]
    assert (fifth.outputs, fifth.decode_rows, fifth.prefill_tokens, fifth.times) == ((), 0, 0, None)
    assert len(tokens_of("a", reports)) == LENGTH
    assert shortfall(model, PROMPT, tokens_of("a", reports)) < ROUNDING


def test_a_prompt_s_step_is_computed_again(start: Start, inbox: Inbox, model: Model) -> None:
    reports = run(start, inbox, {2: 2})
    assert abandoned(reports) == [2]
    assert [report.prefill_tokens for report in reports[:4]] == [7, 0, 7, 6]
    assert shortfall(model, PROMPT, tokens_of("a", reports)) < ROUNDING


def test_a_request_starts_with_the_first_step_that_is_computed(start: Start, inbox: Inbox) -> None:
    reports = run(start, inbox, {1: 1, 2: 2})
    assert [report.started for report in reports[:4]] == [(), (), ("a",), ()]


def test_steps_can_be_abandoned_one_after_the_other(start: Start, inbox: Inbox, model: Model) -> None:
    steps = [1, 2, 4, 6, 7, 8, 9]
    reports = run(start, inbox, dict(zip(steps, steps, strict=True)))
    assert abandoned(reports) == steps
    assert len(tokens_of("a", reports)) == LENGTH
    assert shortfall(model, PROMPT, tokens_of("a", reports)) < ROUNDING


@pytest.mark.parametrize("number", [0, 1, 4, 6])
def test_only_the_step_under_way_can_be_abandoned(start: Start, inbox: Inbox, number: int) -> None:
    assert abandoned(run(start, inbox, {5: number})) == []


def test_a_lane_that_cannot_break_off_a_step_goes_on(start: Start, inbox: Inbox, model: Model) -> None:
    reports = run(start, inbox, {step: step for step in range(1, 20)}, can_abandon=False)
    assert abandoned(reports) == []
    assert shortfall(model, PROMPT, tokens_of("a", reports)) < ROUNDING


def test_a_lane_that_sleeps_has_nothing_to_abandon(start: Start, inbox: Inbox) -> None:
    lane = start()
    lane.abandon(StepNumber(1))
    lane.post(plan(1, request("a")))
    reports = inbox.reports_until("a")
    lane.abandon(StepNumber(reports[-1].step))
    lane.abandon(StepNumber(reports[-1].step + 1))
    lane.post(plan(2, request("b")))
    assert abandoned([*reports, *inbox.reports_until("b")]) == []


def test_a_plan_taken_before_an_abandoned_step_is_acknowledged_with_it(start: Start, inbox: Inbox) -> None:
    interfere = EachStep({3: 3})
    hold = Hold(2)

    def follow(step: int) -> None:
        hold(step)
        interfere(step)

    lane = interfere.lane = start(Script(follow))
    lane.post(plan(1, *(request(name, i, max_tokens=100) for i, name in enumerate("abc"))))
    hold.wait()
    lane.post(plan(2, leave("a"), park("b", 1)))
    hold.let_go()
    reports = [inbox.report() for _ in range(4)]
    third = reports[2]
    assert (third.abandoned, third.version, third.left) == (True, 2, ("a",))
    assert [(parked.request, parked.computed) for parked in third.parked] == [("b", len(PROMPT) + 1)]
    assert (reports[3].left, reports[3].parked) == ((), ())


def test_what_was_computed_of_an_abandoned_step_is_undone(start: Start, inbox: Inbox, model: Model) -> None:
    lane = start(Script(half_steps=[1, 3, 4]))
    lane.post(plan(1, request("a", 0)))
    reports = inbox.reports_until("a")
    lane.post(plan(2, *(join(name, i, PROMPT[:9], max_tokens=3, sampling=ENDLESS) for i, name in enumerate("bcd"))))
    reports += inbox.reports_until("b", "c", "d")
    assert abandoned(reports) == [1, 3, 4]
    assert shortfall(model, PROMPT, tokens_of("a", reports)) < ROUNDING
    for name in "bcd":
        assert shortfall(model, PROMPT[:9], tokens_of(name, reports)) < ROUNDING


def test_rows_that_had_no_part_in_an_abandoned_step_keep_their_cells(start: Start, inbox: Inbox, model: Model) -> None:
    lane = start(Script(half_steps=[4]))
    lane.post(plan(1, join("batch", 0, PROMPT, max_tokens=20, sampling=ENDLESS, level=5)))
    reports = [inbox.report()]
    lane.post(plan(2, join("chat", 1, PROMPT[::-1] * 2, max_tokens=LENGTH, sampling=ENDLESS), prefill_tokens=8))
    reports += inbox.reports_until("batch", "chat")
    assert shortfall(model, PROMPT, tokens_of("batch", reports)) < ROUNDING
    assert shortfall(model, PROMPT[::-1] * 2, tokens_of("chat", reports)) < ROUNDING


def test_where_a_step_cannot_be_undone_its_rows_are_computed_again(hybrid_model: Model, inbox: Inbox) -> None:
    lane = open_lane(hybrid_model, Script(half_steps=[2, 5]))
    lane.start(inbox)
    lane.post(plan(1, request("a"), prefill_tokens=7))
    reports = inbox.reports_until("a")
    lane.close()
    assert abandoned(reports) == [2, 5]
    assert sum(report.prefill_tokens for report in reports) > len(PROMPT)
    assert shortfall(hybrid_model, PROMPT, tokens_of("a", reports)) < ROUNDING


def test_a_prompt_that_is_abandoned_at_any_moment_comes_out_right(start: Start, inbox: Inbox, model: Model) -> None:
    prompt = [3 + i % 250 for i in range(640)]
    lane = start(max_step_tokens=64)
    lane.post(plan(1, join("a", 0, prompt, max_tokens=4, sampling=ENDLESS)))
    reports: list[StepReport] = []
    while not any(output.ended for report in reports for output in report.outputs):
        reports.append(inbox.report())
        if len(abandoned(reports)) < 20:  # whether it is in time, only the threads know
            lane.abandon(StepNumber(reports[-1].step + 1))
    assert sum(report.prefill_tokens for report in reports) == len(prompt)
    assert shortfall(model, prompt, tokens_of("a", reports)) < ROUNDING

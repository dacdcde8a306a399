"""A lane whose rows draft tokens: they gain the same ones as without, in fewer steps, and their cells are in order.

The context itself complains when a sequence does not go on where its cells end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llamalane.errors import RequestFailedError
from llamalane.streams import FinishReason, Parked, Parking, SamplingParameters, StepReport
from llamalane.streams.drafts import DraftOptions
from llamalane.streams.lane import Lane, patience_after
from llamalane.streams.llama import Model, ModelOptions
from tests.models.tiny_gguf import EOS, Kind
from tests.streams.lane_rig import (
    ENDLESS,
    NO_TOKEN,
    OPTIONS,
    ROUNDING,
    SEEDED,
    Hold,
    Inbox,
    Script,
    finish_of,
    misdraw,
    open_lane,
    outputs_of,
    shortfall,
    tokens_of,
)
from tests.streams.plans import GREEDY, join, leave, park, plan

Start = Callable[..., Lane]
BODY = list(range(70, 90))
PROMPT = [*BODY, *BODY[:3]]
"""It begins again at its end, and goes on as it did before."""
LENGTH = 40
TEXT = (BODY * 10)[: len(PROMPT) + LENGTH]
DRAFTING = DraftOptions(draft_tokens=8, most_rows=2)
ROOMY = replace(OPTIONS, output_rows=32)


def draft(start: Start, script: Script | None = None, texts: Mapping[int, Sequence[int]] | None = None) -> Lane:
    """Start a lane that drafts, and says `texts`; `TEXT` on its first two sequences if there are none."""
    texts = {0: TEXT, 1: TEXT} if texts is None else texts
    return start(script, options=ROOMY, output_rows=ROOMY.outputs, drafting=DRAFTING, texts=texts)


def cells_of(lane: Lane, inbox: Inbox, version: int, request: str, sequence: int = 0) -> int:
    """Ask a lane how many cells a sequence holds that no row uses."""
    lane.post(plan(version, park(request, sequence, Parking.PAUSE)))
    while True:
        for parked in inbox.report().parked:
            return parked.computed


def drafted(reports: Sequence[StepReport]) -> tuple[int, int]:
    return sum(report.drafted_tokens for report in reports), sum(report.accepted_tokens for report in reports)


def test_right_drafts_are_tokens_without_steps_of_their_own(start: Start, inbox: Inbox) -> None:
    lane = draft(start)
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=LENGTH)))
    reports = inbox.reports_until("a")
    assert tokens_of("a", reports) == TEXT[len(PROMPT) :]
    assert finish_of("a", reports) is FinishReason.LENGTH
    made, right = drafted(reports)
    assert made == right == LENGTH - len(reports)
    assert [len(report.outputs) for report in reports] == [1, 3, 5, 9, 9, 9, 4]
    assert {report.decode_rows for report in reports[1:]} == {1}
    assert cells_of(lane, inbox, 2, "a") == len(TEXT) - 1


def test_wrong_drafts_change_nothing(start: Start, inbox: Inbox) -> None:
    text = [*TEXT[: len(PROMPT) + 5], 100, 101, *BODY[4:9], 102, *TEXT]
    lane = draft(start, texts={0: text})
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=LENGTH)))
    reports = inbox.reports_until("a")
    assert tokens_of("a", reports) == text[len(PROMPT) :][:LENGTH]
    made, right = drafted(reports)
    assert 0 < right < made
    assert right == LENGTH - len(reports)
    assert cells_of(lane, inbox, 2, "a") == len(PROMPT) + LENGTH - 1


@pytest.mark.parametrize("foretold", [True, False])
def test_an_end_within_a_draft_is_the_end(start: Start, inbox: Inbox, foretold: bool) -> None:
    body = [*BODY[:10], EOS, *BODY[10:]] if foretold else BODY
    prompt = [*body, *body[:3]]
    text = [*prompt, *BODY[3:10], EOS, *BODY]
    lane = draft(start, texts={0: text})
    lane.post(plan(1, join("a", 0, prompt, max_tokens=LENGTH, sampling=GREEDY)))
    reports = inbox.reports_until("a")
    assert tokens_of("a", reports) == [*BODY[3:10], EOS]
    assert finish_of("a", reports) is FinishReason.STOP
    assert drafted(reports)[0] > drafted(reports)[1]
    assert cells_of(lane, inbox, 2, "a") == len(prompt) + 7


@pytest.mark.parametrize("length", range(1, 20))
def test_the_most_tokens_are_the_most(start: Start, inbox: Inbox, length: int) -> None:
    lane = draft(start)
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=length)))
    reports = inbox.reports_until("a")
    assert tokens_of("a", reports) == TEXT[len(PROMPT) :][:length]
    assert finish_of("a", reports) is FinishReason.LENGTH
    assert cells_of(lane, inbox, 2, "a") == len(PROMPT) + length - 1


def test_a_row_fills_no_more_cells_than_it_was_granted(start: Start, inbox: Inbox) -> None:
    lane = draft(start)
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=LENGTH, cells=len(PROMPT) + 11)))
    reports = [inbox.report()]
    while sum(len(report.outputs) for report in reports) < 12:
        reports.append(inbox.report())
    assert tokens_of("a", reports) == TEXT[len(PROMPT) :][:12]
    assert cells_of(lane, inbox, 2, "a") == len(PROMPT) + 11


def test_a_choice_that_fails_within_a_draft_ends_its_row_and_nobody_elses(start: Start, inbox: Inbox) -> None:
    broken = [*TEXT[: len(PROMPT) + 6], NO_TOKEN, *TEXT]
    lane = draft(start, texts={0: broken, 1: TEXT})
    lane.post(plan(1, *(join(name, number, PROMPT, max_tokens=LENGTH) for number, name in enumerate("ab"))))
    reports = inbox.reports_until("a", "b")
    failed = outputs_of("a", reports)
    assert [output.token for output in failed[:-1]] == TEXT[len(PROMPT) :][:6]
    assert isinstance(failed[-1].error, RequestFailedError)
    assert tokens_of("b", reports) == TEXT[len(PROMPT) :]
    lane.post(plan(2, join("c", 0, TEXT[:30], cached=len(PROMPT) + 5, max_tokens=5)))
    assert inbox.report().prefill_tokens == 2, "what was right before is still there"


def test_two_rows_gain_their_own_tokens(start: Start, inbox: Inbox) -> None:
    other = [*BODY[5:], *BODY[:8], *BODY[5:], *BODY]
    texts = {0: TEXT, 1: other[: len(PROMPT)] + [60] * 9 + other}
    lane = draft(start, texts=texts)
    lane.post(
        plan(1, *(join(name, number, texts[number][: len(PROMPT)], max_tokens=30) for number, name in enumerate("ab")))
    )
    reports = inbox.reports_until("a", "b")
    for number, name in enumerate("ab"):
        assert tokens_of(name, reports) == texts[number][len(PROMPT) :][:30]
        assert cells_of(lane, inbox, 2 + number, name, number) == len(PROMPT) + 29
    assert any({output.request for output in report.outputs} == {"a", "b"} for report in reports[1:])


def test_with_more_rows_than_may_draft_nobody_does(start: Start, inbox: Inbox) -> None:
    lane = draft(start, texts=dict.fromkeys(range(3), TEXT[5:]))
    names = ("a", "b", "c")
    lane.post(plan(1, *(join(name, number, PROMPT[5:], max_tokens=10) for number, name in enumerate(names))))
    reports = inbox.reports_until(*names)
    assert drafted(reports) == (0, 0)
    assert len(reports) == 10


@pytest.mark.parametrize("step", [2, 3, 4])
def test_an_abandoned_step_leaves_nothing_of_its_drafts(start: Start, inbox: Inbox, step: int) -> None:
    lane = draft(start, Script(half_steps=(step,)))
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=LENGTH)))
    reports = inbox.reports_until("a")
    assert [report.step for report in reports if report.abandoned] == [step]
    assert tokens_of("a", reports) == TEXT[len(PROMPT) :]
    assert all(report.drafted_tokens == 0 for report in reports if report.abandoned)
    assert drafted(reports)[1] == LENGTH - (len(reports) - 1)


@pytest.mark.parametrize("how", list(Parking))
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_who_is_parked_goes_on_where_it_was(start: Start, inbox: Inbox, how: Parking, wrong: bool) -> None:
    text = [*TEXT[: len(PROMPT) + 6], 100, *TEXT] if wrong else TEXT
    hold = Hold(3)
    lane = draft(start, Script(hold), texts={0: text})
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=LENGTH)))
    hold.wait()
    lane.post(plan(2, park("a", 0, how)))
    hold.let_go()
    reports, parked = until_parked(inbox)
    tokens = tokens_of("a", reports)
    assert 3 < len(tokens) < 10
    assert parked.computed == len(PROMPT) + len(tokens) - 1
    history = [*PROMPT, *tokens]
    cached = parked.computed if how is Parking.PAUSE or parked.saved else 0
    again = join("a", 0, history, cached=cached, generated=len(tokens), max_tokens=LENGTH - len(tokens))
    lane.post(plan(3, replace(again, saved=parked.saved)))
    rest = inbox.reports_until("a")
    assert [*tokens, *tokens_of("a", rest)] == text[len(PROMPT) :][:LENGTH]
    assert rest[0].prefill_tokens == 0 or how is Parking.RECOMPUTE


def until_parked(inbox: Inbox) -> tuple[list[StepReport], Parked]:
    reports = []
    while True:
        reports.append(inbox.report())
        for parked in reports[-1].parked:
            return reports, parked


def test_who_leaves_keeps_what_was_right(start: Start, inbox: Inbox) -> None:
    hold = Hold(4)
    lane = draft(start, Script(hold))
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=LENGTH)))
    hold.wait()
    lane.post(plan(2, leave("a", keep=len(PROMPT) + 2)))
    hold.let_go()
    while not inbox.report().left:
        pass
    assert cells_of(lane, inbox, 3, "a") == len(PROMPT) + 2


def test_a_lane_waits_for_a_plan_as_long_as_a_row_is_worth_and_not_a_token(start: Start, inbox: Inbox) -> None:
    lane = draft(start)
    lane.post(plan(1, join("a", 0, PROMPT, max_tokens=LENGTH)))
    last = inbox.reports_until("a")[-1]
    assert len(last.outputs) == 4
    assert last.times is not None
    slow = replace(last, times=replace(last.times, decode=0.0015))
    assert patience_after(slow) == 0.0015


SMALL = {token: float("-inf") for token in range(260) if token not in (100, 101, 102)}
"""Lets an output have three tokens, so that it repeats itself."""


@pytest.mark.parametrize("sampling", [ENDLESS, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("kind", [Kind.DENSE, Kind.SLIDING])
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_model_says_what_it_would_have_said(
    tiny_models: Mapping[Kind, Path], inbox: Inbox, sampling: SamplingParameters, kind: Kind, partitioned: bool
) -> None:
    prompts = [PROMPT, PROMPT[5:]]
    options = replace(ROOMY, partitioned=partitioned)
    biased = replace(sampling, logit_bias=SMALL)
    with Model(ModelOptions(path=tiny_models[kind])) as model:
        lane = open_lane(model, options=options, output_rows=options.outputs, drafting=DRAFTING)
        lane.start(inbox)
        joins = [join(f"r{i}", i, prompt, max_tokens=LENGTH, sampling=biased) for i, prompt in enumerate(prompts)]
        lane.post(plan(1, *joins))
        reports = inbox.reports_until("r0", "r1")
        lane.close()
        made, right = drafted(reports)
        assert 0 < right < made
        for number, prompt in enumerate(prompts):
            output = tokens_of(f"r{number}", reports)
            assert len(output) == LENGTH
            off = shortfall if sampling is ENDLESS else misdraw
            assert off(model, prompt, output, SMALL) < ROUNDING


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.lists(st.integers(70, 72), min_size=60, max_size=60), min_size=1, max_size=3),
    prompts=st.lists(st.integers(1, 30), min_size=3, max_size=3),
    lengths=st.lists(st.integers(1, 29), min_size=3, max_size=3),
    ends=st.lists(st.integers(1, 59), max_size=3),
    drafting=st.builds(DraftOptions, draft_tokens=st.integers(1, 8), most_rows=st.integers(1, 3)),
    partitioned=st.booleans(),
    half_steps=st.lists(st.integers(1, 12), max_size=2),
)
def test_whatever_is_drafted_the_same_tokens_come(
    model: Model,
    texts: list[list[int]],
    prompts: list[int],
    lengths: list[int],
    ends: list[int],
    drafting: DraftOptions,
    partitioned: bool,
    half_steps: list[int],
) -> None:
    inbox = Inbox()
    for text, end in zip(texts, ends, strict=False):
        text[end] = EOS
    options = replace(ROOMY, partitioned=partitioned)
    lane = open_lane(
        model,
        Script(half_steps=half_steps),
        options=options,
        output_rows=options.outputs,
        drafting=drafting,
        texts=dict(enumerate(texts)),
    )
    lane.start(inbox)
    names = [f"r{number}" for number in range(len(texts))]
    lane.post(
        plan(
            1,
            *(
                join(name, number, texts[number][: prompts[number]], max_tokens=lengths[number])
                for number, name in enumerate(names)
            ),
        )
    )
    reports = inbox.reports_until(*names)
    for number, name in enumerate(names):
        expected = texts[number][prompts[number] :][: lengths[number]]
        if EOS in expected:
            expected = expected[: expected.index(EOS) + 1]
        assert tokens_of(name, reports) == expected
        assert cells_of(lane, inbox, 2 + number, name, number) == prompts[number] + len(expected) - 1
    lane.close()

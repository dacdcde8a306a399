"""Prompts whose tokens are reported with their log probabilities: chunk by chunk, each token once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import RequestFailedError
from llamalane.streams import Join, Parking, StepReport, TokenScores
from llamalane.streams.lane import Lane
from llamalane.streams.llama import Batch, ContextOptions, Model, ModelOptions
from llamalane.streams.logprobs import log_softmax
from llamalane.streams.running_set import Work
from tests.models.tiny_gguf import Kind
from tests.streams.lane_rig import (
    ENDLESS,
    OPTIONS,
    PROMPT,
    ROUNDING,
    Inbox,
    Script,
    logits_along,
    open_lane,
    outputs_of,
    tokens_of,
)
from tests.streams.plans import edit, join, park, plan
from tests.streams.set_rig import in_batch, parts, rig
from tests.streams.test_lane_abandon import EachStep

Start = Callable[..., Lane]
MEASURED = dataclasses.replace(ENDLESS, prompt_logprobs=3, logprobs=2)
WHOLE = range(1, len(PROMPT))


def measured(work: Work) -> dict[str, tuple[range, int]]:
    """Return which tokens of each request a step tells of, and by which of its logits."""
    return {part.row.join.request: (part.tokens, part.place) for part in work.measured}


def wanted(batch: Batch) -> list[tuple[int, int]]:
    """Return the sequence and position of each token that gives logits."""
    return [(sequence, position) for sequence, position, _, output in in_batch(batch) if output]


def test_a_prompt_is_measured_in_chunks_of_the_logits_that_there_are() -> None:
    it = rig(output_rows=4)
    it.apply(plan(1, join("a", 1, range(10, 19), measure=range(1, 9))))
    chunks = []
    for _ in range(3):
        work = it.step()
        chunks.append((wanted(it.batch), measured(work), [row.join.request for row in work.outputs], work.places))
    assert chunks == [
        ([(1, 0), (1, 1), (1, 2), (1, 3)], {"a": (range(1, 5), 0)}, [], []),
        ([(1, 4), (1, 5), (1, 6), (1, 7)], {"a": (range(5, 9), 0)}, [], []),
        ([(1, 8)], {}, ["a"], [0]),
    ]


def test_what_was_told_before_is_computed_without_logits() -> None:
    it = rig(output_rows=3)
    it.apply(plan(1, join("a", 0, range(10, 20), measure=range(6, 10))))
    work = it.step()
    assert wanted(it.batch) == [(0, 5), (0, 6), (0, 7)]
    assert measured(work) == {"a": (range(6, 9), 0)}
    work = it.step()
    assert wanted(it.batch) == [(0, 8), (0, 9)]
    assert measured(work) == {"a": (range(9, 10), 0)}
    assert work.places == [1]


def test_rows_that_choose_a_token_keep_their_logits() -> None:
    it = rig(output_rows=5)
    it.apply(plan(1, join("old", 0, [5], max_tokens=9), join("older", 3, [5], max_tokens=9)))
    it.step()
    it.apply(plan(2, join("a", 1, range(10, 18), measure=range(1, 8)), join("b", 2, [20, 21, 22])))
    work = it.step()
    assert wanted(it.batch) == [(0, 1), (3, 1), (1, 0), (1, 1), (2, 2)]
    assert measured(work) == {"a": (range(1, 3), 2)}
    assert [row.join.request for row in work.outputs] == ["old", "older", "b"]
    assert work.places == [0, 1, 4]


def test_without_room_for_more_each_measured_row_gets_one_token_further() -> None:
    it = rig()
    it.apply(plan(1, *(join(name, at, range(10, 14), measure=range(1, 4)) for at, name in enumerate("ab"))))
    for token in range(4):
        work = it.step()
        assert parts(work) == {"a": 1, "b": 1}
        assert wanted(it.batch) == [(0, token), (1, token)]


def test_a_prompt_of_one_token_has_nothing_to_measure() -> None:
    it = rig()
    it.apply(plan(1, join("a", 0, [10], measure=range(1, 1))))
    work = it.step()
    assert (measured(work), work.places, wanted(it.batch)) == ({}, [0], [(0, 0)])


@given(
    lengths=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12), st.booleans()), min_size=1, max_size=5),
    output_rows=st.integers(5, 12),
    prefill=st.integers(1, 30),
    by_sequence=st.booleans(),
)
def test_every_token_is_told_once_and_no_step_gives_too_many_logits(
    lengths: Sequence[tuple[int, int, bool]], output_rows: int, prefill: int, by_sequence: bool
) -> None:
    it = rig(capacity=32, output_rows=output_rows, by_sequence=by_sequence)
    known = [min(told, length) for length, told, _ in lengths]
    rows = [
        join(
            str(at),
            at,
            range(length),
            max_tokens=99,
            measure=range(max(1, told), length) if measure else range(0),
        )
        for at, ((length, _, measure), told) in enumerate(zip(lengths, known, strict=True))
    ]
    it.apply(plan(1, *rows, prefill_tokens=prefill))
    told: dict[str, list[int]] = {row.request: [] for row in rows}
    for _ in range(80):
        work = it.step()
        assert it.batch.outputs == len(wanted(it.batch)) <= output_rows
        for part in work.measured:
            told[part.row.join.request] += part.tokens
            given = wanted(it.batch)[part.place : part.place + len(part.tokens)]
            assert given == [(part.row.join.sequence, token - 1) for token in part.tokens]
        for row, place in zip(work.outputs, work.places, strict=True):
            assert wanted(it.batch)[place] == (row.join.sequence, row.computed - 1)
    assert told == {row.request: list(row.measure) for row in rows}
    assert all(row.chosen for row in it.rows)


def scores_in(reports: Sequence[StepReport], request: str = "a") -> list[TokenScores]:
    return [
        score for report in reports for told in report.prompt_scores if told.request == request for score in told.scores
    ]


def check_scores(model: Model, reports: Sequence[StepReport], request: str = "a") -> None:
    """Check what was told of `PROMPT` and of the output, beside an undisturbed context and the definition."""
    output = tokens_of(request, reports)
    scores = [*scores_in(reports, request), *(one.scores for one in outputs_of(request, reports))]
    expected = [*PROMPT[1:], *output]
    assert [score.token for score in scores if score is not None] == expected
    for score, logits, index in zip(scores, logits_along(model, PROMPT[:1], expected), range(99), strict=False):
        assert score is not None
        logprobs = log_softmax(logits)
        assert score.logprob == pytest.approx(logprobs[score.token], abs=ROUNDING)
        assert len(score.likeliest) == (3 if index < len(PROMPT) - 1 else 2)
        for token, logprob in score.likeliest:
            assert logprob == pytest.approx(logprobs[token], abs=ROUNDING)
        assert score.likeliest[0][1] == pytest.approx(logprobs.max(), abs=ROUNDING)


def whole(name: str = "a", sequence: int = 0, **options: Any) -> Join:
    """Return a request for `PROMPT`, of which all is to be measured."""
    return join(name, sequence, PROMPT, max_tokens=4, sampling=MEASURED, **{"measure": WHOLE, **options})


@pytest.mark.parametrize("output_rows", [0, 3, 4])
def test_a_lane_measures_a_prompt(start: Start, inbox: Inbox, model: Model, output_rows: int) -> None:
    start(output_rows=output_rows).post(plan(1, whole()))
    reports = inbox.reports_until("a")
    check_scores(model, reports)
    assert len(reports) == math.ceil(len(PROMPT) / max(1, output_rows)) + 3


def test_a_lane_measures_beside_other_rows(start: Start, inbox: Inbox, model: Model) -> None:
    others = [join(name, at, PROMPT[:5], max_tokens=30, sampling=ENDLESS) for at, name in enumerate("xyz", 1)]
    start(output_rows=4).post(plan(1, *others, whole(), prefill_tokens=9))
    reports = inbox.reports_until("a", "x", "y", "z")
    check_scores(model, reports)
    assert all(output.scores is None for output in outputs_of("x", reports))


def test_parts_of_their_own_give_the_same(start: Start, inbox: Inbox, model: Model) -> None:
    options = ContextOptions(cells=1024, sequences=4, max_step_tokens=64, micro_batch=64, threads=1, partitioned=True)
    requests = [whole("a", 2), whole("b", 0)]
    other = join("x", 1, PROMPT[:9], max_tokens=30, sampling=ENDLESS)
    start(options=options, output_rows=4).post(plan(1, requests[0], other, requests[1]))
    reports = inbox.reports_until("a", "b", "x")
    for request in "ab":
        check_scores(model, reports, request)


def test_an_abandoned_step_is_told_once_it_is_computed(start: Start, inbox: Inbox, model: Model) -> None:
    interfere = EachStep({1: 1, 3: 3, 5: 5, 9: 9})
    interfere.lane = start(Script(interfere, half_steps=[4]), output_rows=4)
    interfere.lane.post(plan(1, whole()))
    reports = inbox.reports_until("a")
    assert sum(report.abandoned for report in reports) == 5
    check_scores(model, reports)


@pytest.mark.parametrize("kind", [Kind.RECURRENT, Kind.HYBRID, Kind.SLIDING])
def test_other_kinds_of_models_measure_as_well(tiny_models: Mapping[Kind, Path], inbox: Inbox, kind: Kind) -> None:
    with Model(ModelOptions(path=tiny_models[kind])) as model:
        lane = open_lane(model, output_rows=4)
        try:
            lane.start(inbox)
            lane.post(plan(1, whole()))
            check_scores(model, inbox.reports_until("a"))
        finally:
            lane.close()


def test_who_was_parked_half_way_goes_on_with_what_is_missing(start: Start, inbox: Inbox, model: Model) -> None:
    lane = start(output_rows=4)
    first = whole(cells=8)  # it gets no further
    lane.post(plan(1, first))
    before = [inbox.report(), inbox.report()]
    assert len(scores_in(before)) == 8
    lane.post(plan(2, edit(1, first), park("a", 0, Parking.RECOMPUTE)))
    parked = inbox.report()
    assert [one.computed for one in parked.parked] == [8]
    rest = range(1 + 8, len(PROMPT))
    lane.post(plan(3, whole(sequence=2, measure=rest)))
    after = inbox.reports_until("a")
    assert scores_in(after)[0].token == PROMPT[9]
    check_scores(model, [*before, *after])


@pytest.mark.parametrize("broken", [2, 4])
def test_numbers_that_are_not_finite_end_that_row_only(start: Start, inbox: Inbox, model: Model, broken: int) -> None:
    script = Script(broken_rows=[broken])
    good, bad = whole("b", 1, urgency=(2.0,)), whole("a", 0, urgency=(1.0,))
    options = dataclasses.replace(OPTIONS, output_rows=6)
    start(script, options=options, output_rows=6).post(plan(1, bad, good))
    reports = inbox.reports_until("a", "b")
    (failed,) = outputs_of("a", reports)
    assert isinstance(failed.error, RequestFailedError)
    assert len(scores_in(reports, "a")) < len(PROMPT) - 1
    check_scores(model, reports, "b")


def test_a_context_may_give_more_logits_than_it_has_sequences(inbox: Inbox, model: Model) -> None:
    options = dataclasses.replace(OPTIONS, output_rows=32)
    lane = open_lane(model, options=options, output_rows=options.outputs)
    try:
        lane.start(inbox)
        lane.post(plan(1, whole()))
        reports = inbox.reports_until("a")
    finally:
        lane.close()
    assert len(scores_in(reports[:1])) == len(PROMPT) - 1
    check_scores(model, reports)

"""How many prompt tokens a step may compute follows the speed that the lane shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import PlanVersion, StepNumber
from llamalane.scheduler.pacing import FIRST_CHUNK, SMALLEST_CHUNK, StepTimeModel
from llamalane.streams import StepReport, StepTimes

LARGEST = 512


def step(rows: int, prompt_tokens: int, seconds: float, sampling: float = 0.0, drafted: int = 0) -> StepReport:
    return StepReport(
        "lane",
        StepNumber(1),
        PlanVersion(1),
        decode_rows=rows,
        prefill_tokens=prompt_tokens,
        drafted_tokens=drafted,
        times=StepTimes(begin=0.0, decode=seconds - sampling, sample=sampling, idle=0.0),
    )


@given(
    rows=st.integers(1, 16),
    decode=st.floats(0.001, 0.2),
    each=st.floats(0.00001, 0.01),
    target=st.floats(0.01, 0.5),
)
def test_a_step_with_prompts_keeps_to_the_target(rows: int, decode: float, each: float, target: float) -> None:
    """On a lane whose steps take a fixed time and some more for each prompt token."""
    model = StepTimeModel()
    for _ in range(5):
        model.observe(step(rows, 0, decode))
    for count in (64, 32, 128, 512):
        model.observe(step(rows, count, decode + each * count))
    budget = model.prefill_tokens(rows, target, LARGEST)
    assert SMALLEST_CHUNK <= budget <= LARGEST
    if budget > SMALLEST_CHUNK:
        assert decode + each * budget <= target + 1e-9
    if budget < LARGEST:
        assert decode + each * (budget + 1) > target - 1e-9


def test_sampling_counts_as_time_of_the_step() -> None:
    model = StepTimeModel()
    model.observe(step(8, 0, 0.05, sampling=0.02))
    model.observe(step(8, 50, 0.10, sampling=0.02))
    assert model.decode_seconds(8) == pytest.approx(0.05)
    assert model.prefill_tokens(8, 0.15, LARGEST) == pytest.approx(100, abs=1)


def test_drafts_play_no_part_where_a_step_without_them_was_seen() -> None:
    model = StepTimeModel()
    model.observe(step(2, 0, 0.09, drafted=8))
    assert model.decode_seconds(2) == pytest.approx(0.09), "better than nothing"
    model.observe(step(1, 0, 0.04))
    for _ in range(5):
        model.observe(step(1, 0, 0.07, drafted=8))
    assert model.decode_seconds(1) == pytest.approx(0.04)


def test_an_unknown_lane_begins_with_a_chunk_of_middling_size() -> None:
    model = StepTimeModel()
    assert model.prefill_tokens(0, 0.1, LARGEST) == FIRST_CHUNK
    model.observe(step(8, 0, 0.05))
    assert model.prefill_tokens(8, 0.1, LARGEST) == FIRST_CHUNK


def test_a_prompt_advances_even_when_decoding_alone_misses_the_target() -> None:
    model = StepTimeModel()
    model.observe(step(8, 0, 0.5))
    model.observe(step(8, 100, 0.6))
    assert model.prefill_tokens(8, 0.1, LARGEST) == SMALLEST_CHUNK


def test_a_chunk_is_never_larger_than_a_step() -> None:
    model = StepTimeModel()
    assert model.prefill_tokens(0, 0.1, 8) == 8
    model.observe(step(0, 8, 0.000001))
    assert model.prefill_tokens(0, 1.0, 8) == 8


def test_a_number_of_rows_that_was_not_seen_is_judged_by_those_that_were() -> None:
    model = StepTimeModel()
    assert model.decode_seconds(3) == 0.0
    model.observe(step(2, 0, 0.02))
    model.observe(step(8, 0, 0.05))
    assert model.decode_seconds(4) == pytest.approx(0.03), "on the line between its neighbours"
    assert model.decode_seconds(1) == pytest.approx(0.015), "the weights are read all the same"
    assert model.decode_seconds(16) == pytest.approx(0.075)
    assert model.decode_seconds(0) == 0.0
    assert model.step_seconds(8, 10) == pytest.approx(0.05), "nothing is known of prompts"


@given(st.dictionaries(st.integers(1, 32), st.floats(0.001, 1), min_size=1), st.floats(0.001, 2), st.integers(0, 40))
def test_as_many_rows_fit_as_keep_to_the_target(seen: dict[int, float], target: float, most: int) -> None:
    model = StepTimeModel()
    for rows, seconds in seen.items():
        model.observe(step(rows, 0, seconds))
    fitting = model.rows_within(target, most)
    assert 0 <= fitting <= most
    assert fitting == 0 or model.decode_seconds(fitting) <= target
    assert all(model.decode_seconds(rows) > target for rows in range(fitting + 1, most + 1))


def test_a_lane_that_becomes_slower_gets_smaller_chunks() -> None:
    model = StepTimeModel()
    model.observe(step(0, 100, 0.01))
    fast = model.prefill_tokens(0, 0.05, LARGEST)
    for _ in range(30):
        model.observe(step(0, 100, 0.1))
    assert model.prefill_tokens(0, 0.05, LARGEST) == pytest.approx(50, abs=2)
    assert fast == 500


def test_a_plan_taken_without_a_step_teaches_nothing() -> None:
    model = StepTimeModel()
    model.observe(StepReport("lane", StepNumber(1), PlanVersion(1)))
    assert model.prefill_tokens(0, 0.1, LARGEST) == FIRST_CHUNK

"""How many cells running requests will come to need."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import Level
from llamalane.scheduler.growth import ENOUGH, FIRST_GUESS, WINDOW, GrowingRow, GrowthPredictor

NORMAL = Level(3)


def row(held: int, generated: int, max_tokens: int, level: Level = NORMAL) -> GrowingRow:
    return GrowingRow(level, held, generated, max_tokens)


@st.composite
def rows(draw: st.DrawFn) -> GrowingRow:
    max_tokens = draw(st.integers(1, 40))
    return row(draw(st.integers(0, 50)), draw(st.integers(0, max_tokens)), max_tokens, Level(draw(st.integers(1, 2))))


@st.composite
def predictors(draw: st.DrawFn) -> GrowthPredictor:
    """Predictors that know nothing yet, and others that know one level or both."""
    predictor = GrowthPredictor(draw(st.sampled_from([0.3, 0.5, 0.8, 1.0])))
    for level in (Level(1), Level(2)):
        for length in draw(st.lists(st.integers(1, 45), max_size=3)) * draw(st.sampled_from([1, ENOUGH])):
            predictor.observe(level, length)
    return predictor


def peak_step_by_step(predictor: GrowthPredictor, running: list[GrowingRow]) -> int:
    """Let every row grow by a cell a step until its predicted end, and note the most cells held in any step."""
    left = [(one.held, predictor.predict(one) - one.generated) for one in running]
    peak = 0
    while left:
        peak = max(peak, sum(held for held, _ in left))
        left = [(held + 1, remaining - 1) for held, remaining in left if remaining > 0]
    return peak


@given(predictor=predictors(), running=st.lists(rows(), max_size=12))
def test_the_peak_is_what_stepping_through_the_future_finds(
    predictor: GrowthPredictor, running: list[GrowingRow]
) -> None:
    assert predictor.peak_cells(running) == peak_step_by_step(predictor, running)


@given(predictor=predictors(), running=st.lists(rows(), max_size=8), candidate=rows(), cells=st.integers(0, 600))
def test_a_candidate_fits_when_the_peak_with_it_does(
    predictor: GrowthPredictor, running: list[GrowingRow], candidate: GrowingRow, cells: int
) -> None:
    assert predictor.fits(candidate, running, cells) == (peak_step_by_step(predictor, [*running, candidate]) <= cells)


@given(predictor=predictors(), running=rows())
def test_a_prediction_lies_between_what_is_there_and_what_may_come(
    predictor: GrowthPredictor, running: GrowingRow
) -> None:
    predicted = predictor.predict(running)
    assert running.generated <= predicted <= running.max_tokens
    assert predicted > running.generated or running.generated == running.max_tokens


@given(predictor=predictors(), running=rows())
def test_an_output_that_got_longer_is_not_thought_to_end_sooner(
    predictor: GrowthPredictor, running: GrowingRow
) -> None:
    longer = row(running.held + 1, min(running.generated + 1, running.max_tokens), running.max_tokens, running.level)
    assert predictor.predict(longer) >= predictor.predict(running)


def test_requests_that_end_at_different_times_need_less_than_the_sum() -> None:
    predictor = GrowthPredictor()
    soon_done, just_begun = row(held=100, generated=8, max_tokens=10), row(held=10, generated=0, max_tokens=80)
    assert predictor.peak_cells([soon_done, just_begun]) == 100 + 2 + 10 + 2
    assert predictor.peak_cells([just_begun]) == 90
    assert predictor.fits(just_begun, [soon_done], cells=114)
    assert not predictor.fits(just_begun, [soon_done], cells=113)
    assert predictor.peak_cells([]) == 0


def test_little_seen_is_not_trusted() -> None:
    predictor = GrowthPredictor()
    fresh = row(held=10, generated=0, max_tokens=4 * FIRST_GUESS)
    for _ in range(ENOUGH - 1):
        predictor.observe(NORMAL, 5)
    assert predictor.predict(fresh) == FIRST_GUESS
    assert predictor.predict(row(10, 0, max_tokens=7)) == 7
    assert predictor.predict(row(10, FIRST_GUESS, 4 * FIRST_GUESS)) == 2 * FIRST_GUESS
    predictor.observe(NORMAL, 5)
    assert predictor.predict(fresh) == 5


def test_what_has_outgrown_all_that_was_seen_is_thought_to_get_as_much_again() -> None:
    predictor = GrowthPredictor()
    for _ in range(ENOUGH):
        predictor.observe(NORMAL, 300)
    assert predictor.predict(row(held=0, generated=299, max_tokens=5000)) == 300
    assert predictor.predict(row(held=0, generated=300, max_tokens=5000)) == 600


def test_levels_have_lengths_of_their_own() -> None:
    predictor = GrowthPredictor()
    for _ in range(ENOUGH):
        predictor.observe(Level(1), 8)
        predictor.observe(Level(5), 400)
    assert predictor.predict(row(0, 0, 1000, Level(1))) == 8
    assert predictor.predict(row(0, 0, 1000, Level(5))) == 400
    assert predictor.predict(row(0, 0, 1000, Level(2))) == 400, "the quantile of all levels"


def test_a_change_of_lengths_is_followed() -> None:
    predictor = GrowthPredictor()
    for _ in range(WINDOW):
        predictor.observe(NORMAL, 10)
    for _ in range(WINDOW):
        predictor.observe(NORMAL, 100)
    assert predictor.predict(row(0, 0, 1000)) == 100


def test_the_quantile_is_that_share_of_the_outputs_right_about_which_are_still_going() -> None:
    random_lengths = random.Random(7)
    predictor = GrowthPredictor(quantile=0.8)
    for _ in range(WINDOW):
        predictor.observe(NORMAL, random_lengths.randint(1, 500))
    fresh = [random_lengths.randint(1, 500) for _ in range(4000)]
    for generated in (0, 100, 300):
        going = [length for length in fresh if length > generated]
        predicted = predictor.predict(row(0, generated, 1000))
        enough = sum(length <= predicted for length in going) / len(going)
        assert enough == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("quantile", [0, -0.1, 1.01, float("nan")])
def test_a_quantile_is_a_share(quantile: float) -> None:
    with pytest.raises(ValueError, match="quantile must be more than 0 and at most 1"):
        GrowthPredictor(quantile)

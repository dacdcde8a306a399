"""Log probabilities, beside what the definition gives token by token."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.errors import RequestFailedError
from llamalane.streams.logprobs import log_softmax, score_all, scores_of
from llamalane.streams.token_scores import TokenScores

SIZES = (1, 2, 20, 260, 1023, 1024, 1300, 5000)
"""Of vocabularies; from 1,024 on they are searched in groups."""


def naive(logits: npt.NDArray[np.float32]) -> list[float]:
    """Return log probabilities by their definition, with exact sums."""
    best = max(map(float, logits))
    total = math.fsum(math.exp(float(logit) - best) for logit in logits)
    return [float(logit) - best - math.log(total) for logit in logits]


def random_logits(seed: int, size: int, *, equals: bool) -> npt.NDArray[np.float32]:
    logits = np.random.default_rng(seed).normal(0, 4, size).astype(np.float32)
    return np.round(logits) if equals else logits


@pytest.mark.parametrize("size", SIZES)
def test_the_definition_holds(size: int) -> None:
    logits = random_logits(size, size, equals=False)
    before = logits.copy()
    logprobs = log_softmax(logits)
    assert logprobs == pytest.approx(naive(logits), abs=2e-6)
    assert np.exp(logprobs, dtype=np.float64).sum() == pytest.approx(1, abs=1e-5)
    assert (logits == before).all()


def test_numbers_however_large_are_no_matter() -> None:
    logits = np.array([1e38, 1e38, -1e38], np.float32)
    assert log_softmax(logits)[:2] == pytest.approx(math.log(0.5))


def test_what_is_impossible_has_a_probability_of_0() -> None:
    logprobs = log_softmax(np.array([0, -np.inf, 0], np.float32))
    assert logprobs.tolist() == pytest.approx([math.log(0.5), -math.inf, math.log(0.5)])
    assert scores_of(logprobs, 1, 2).logprob == -math.inf


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_are_not_finite_fail(number: float) -> None:
    with pytest.raises(RequestFailedError, match="not finite"):
        log_softmax(np.array([0, number, 0], np.float32))
    with pytest.raises(RequestFailedError, match="not finite"):
        log_softmax(np.full(3, -np.inf, np.float32))


@given(seed=st.integers(0, 999), size=st.sampled_from(SIZES), count=st.integers(0, 20), equals=st.booleans())
def test_the_likeliest_are_those_that_sorting_finds(seed: int, size: int, count: int, equals: bool) -> None:
    logprobs = log_softmax(random_logits(seed, size, equals=equals))
    token = seed % size
    expected = sorted(range(size), key=lambda place: (-logprobs[place], place))[:count]
    scores = scores_of(logprobs, token, count)
    assert [other for other, _ in scores.likeliest] == expected
    assert [logprob for _, logprob in scores.likeliest] == logprobs[expected].tolist()
    assert (scores.token, scores.logprob) == (token, logprobs[token])


@pytest.mark.parametrize("size", [600, 6000])
def test_the_likeliest_are_found_where_nearly_all_are_impossible(size: int) -> None:
    logits = np.full(size, -np.inf, np.float32)
    logits[size - 1] = 1
    likeliest = scores_of(log_softmax(logits), 0, 3).likeliest
    assert likeliest == ((size - 1, 0.0), (0, -math.inf), (1, -math.inf))


def test_each_token_is_scored_by_its_own_row() -> None:
    rows = np.log(np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [1, 1, 1]], np.float32))
    one, other = score_all(rows, [2, 1], 1)
    assert one == TokenScores(2, pytest.approx(math.log(0.25)), ((0, pytest.approx(math.log(0.5))),))  # type: ignore[arg-type]
    assert other == TokenScores(1, pytest.approx(math.log(0.75)), ((1, pytest.approx(math.log(0.75))),))  # type: ignore[arg-type]

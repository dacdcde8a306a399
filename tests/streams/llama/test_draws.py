"""Draws: reproducible, independent of what was drawn before, and as frequent as the model's numbers say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamalane.streams import SamplingParameters
from llamalane.streams.llama import Candidates, Sampler, Vocabulary, uniform

SIZE = 260
DRAWS = 10_000
WORDS = st.integers(0, 2**64 - 1)


def chi_square_bound(freedom: int) -> float:
    """Return what chi-square exceeds by chance about once in 30,000 times (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 4 * math.sqrt(spread)) ** 3


def chi_square(counts: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]) -> tuple[float, int]:
    """Return chi-square and its degrees of freedom; cells where little is expected are taken together."""
    expected = shares * counts.sum()
    rare = expected < 10
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    return float(((counts - expected) ** 2 / expected).sum()), len(expected) - 1


def noise(seed: int = 3) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 2, SIZE).astype(np.float32)


def draw(vocabulary: Vocabulary, indices: range, *, choice: int = 0, **fields: Any) -> list[int]:
    parameters = SamplingParameters(**{"seed": 7, **fields})
    sampler = Sampler(vocabulary, parameters, choice=choice, history=(), window=64)
    candidates = Candidates(SIZE)
    logits = noise()
    tokens = [sampler.choose(logits, index, candidates) for index in indices]
    sampler.close()
    return tokens


@settings(deadline=None)
@given(WORDS, WORDS, WORDS)
def test_a_number_is_a_function_of_seed_choice_and_index(seed: int, choice: int, index: int) -> None:
    number = uniform(seed, choice, index)
    assert 0 <= number < 1
    assert uniform(seed, choice, index) == number
    others = {uniform(seed ^ 1, choice, index), uniform(seed, choice ^ 1, index), uniform(seed, choice, index ^ 1)}
    assert number not in others
    assert len(others) == 3


@pytest.mark.parametrize("varied", ["seed", "choice", "index"])
def test_numbers_are_uniform_whichever_of_the_three_counts(varied: str) -> None:
    fixed = {"seed": 11, "choice": 0, "index": 5}
    numbers = np.array([uniform(**{**fixed, varied: n}) for n in range(20_000)])
    counts = np.bincount((numbers * 64).astype(int), minlength=64)
    value, freedom = chi_square(counts, np.full(64, 1 / 64))
    assert value < chi_square_bound(freedom)
    pairs = np.bincount((numbers[:-1] * 8).astype(int) * 8 + (numbers[1:] * 8).astype(int), minlength=64)
    value, freedom = chi_square(pairs, np.full(64, 1 / 64))
    assert value < chi_square_bound(freedom), "neighbours depend on each other"


def test_the_same_seed_gives_the_same_tokens(vocabulary: Vocabulary) -> None:
    assert draw(vocabulary, range(200)) == draw(vocabulary, range(200))


def test_another_seed_or_choice_gives_others(vocabulary: Vocabulary) -> None:
    tokens = draw(vocabulary, range(200))
    assert draw(vocabulary, range(200), seed=8) != tokens
    assert draw(vocabulary, range(200), choice=1) != tokens


def test_a_token_does_not_depend_on_what_was_drawn_before(vocabulary: Vocabulary) -> None:
    tokens = draw(vocabulary, range(200))
    assert draw(vocabulary, range(150, 200)) == tokens[150:]
    assert draw(vocabulary, range(199, -1, -1)) == tokens[::-1]


def test_almost_equal_logits_do_not_change_places(vocabulary: Vocabulary) -> None:
    # Sorted by probability, a difference in the last bit would send the same random number to another token.
    parameters = SamplingParameters(seed=7, temperature=1.0, top_p=1.0)
    candidates = Candidates(SIZE)
    logits = np.full(SIZE, -30, np.float32)
    logits[100:120] = 1.0
    chosen = []
    for nudge in (-1e-6, 0.0, 1e-6):
        nudged = logits.copy()
        nudged[110] += nudge
        sampler = Sampler(vocabulary, parameters, choice=0, history=(), window=64)
        chosen.append([sampler.choose(nudged, index, candidates) for index in range(200)])
        sampler.close()
    assert chosen[0] == chosen[1] == chosen[2]


def expected_shares(fields: dict[str, Any]) -> npt.NDArray[np.float64]:
    """What should be drawn how often: every cut, in llama-server's order, written down in the plainest way."""
    parameters = SamplingParameters(**fields)
    logits = noise().astype(np.float64)
    order = np.argsort(-logits)
    if parameters.top_k:
        order = order[: parameters.top_k]
    shares = np.exp(logits[order]) / np.exp(logits[order]).sum()
    if parameters.top_p < 1:
        order = order[: int((shares.cumsum() < parameters.top_p).sum()) + 1]
    order = order[np.exp(logits[order] - logits[order[0]]) >= parameters.min_p]
    weights = np.exp(logits[order] / parameters.temperature)
    result = np.zeros(SIZE)
    result[order] = weights / weights.sum()
    return result


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 1.0, "top_k": 0, "top_p": 0.7, "min_p": 0.0},
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.02},
        {"temperature": 1.5, "top_k": 12, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 0.3, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_likely(vocabulary: Vocabulary, fields: dict[str, Any]) -> None:
    counts = np.bincount(draw(vocabulary, range(DRAWS), **fields), minlength=SIZE)
    shares = expected_shares(fields)
    assert counts[shares == 0].sum() == 0, "a token that was cut off was drawn"
    value, freedom = chi_square(counts, shares)
    assert freedom >= 2, "nothing was tested"
    assert value < chi_square_bound(freedom)

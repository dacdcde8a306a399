"""The cuts: what they leave is what llama.cpp's own samplers leave, and a draw falls where the weights say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from llamalane.bench.llama_chain import LlamaChain
from llamalane.streams import SamplingParameters
from llamalane.streams.llama import Candidates, uniform
from llamalane.streams.llama.candidates import Distribution
from tests.streams.llama.test_draws import chi_square, chi_square_bound

Logits = npt.NDArray[np.float32]

LARGE = 49_152
LAST = 1 - 2.0**-53
"""The largest random number that there is."""


def gumbel(size: int, spread: float, seed: int = 1) -> Logits:
    """Logits as models have them: a few stand out, the more the larger `spread` is; no two are the same."""
    logits = np.random.default_rng(seed).gumbel(0, spread, size).astype(np.float32)
    assert len(np.unique(logits)) > 0.9 * size
    return logits


ROWS: dict[str, Callable[[], Logits]] = {
    "small": lambda: gumbel(260, 2.0),
    "few in the nucleus": lambda: gumbel(LARGE, 2.2),
    "hundreds in the nucleus": lambda: gumbel(LARGE, 1.35, seed=2),
    "most in the nucleus": lambda: gumbel(LARGE, 0.5),
    "almost flat": lambda: gumbel(LARGE, 0.01),
    "one above a flat rest": lambda: np.append(gumbel(LARGE, 0.01), np.float32(12)),
    "no multiple of anything": lambda: gumbel(10_007, 1.0),
    "nearly all forbidden": lambda: np.where(np.arange(LARGE) % 5000 == 3, gumbel(LARGE, 1.0), np.float32(-np.inf)),
}
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
CUTS: list[dict[str, Any]] = [
    {},
    PLAIN,
    {**PLAIN, "top_k": 40},
    {**PLAIN, "top_k": 2},
    {**PLAIN, "top_k": 700},
    {**PLAIN, "top_k": 20_000},
    {**PLAIN, "top_k": 10**6},
    {**PLAIN, "top_p": 0.95},
    {**PLAIN, "top_p": 0.4},
    {**PLAIN, "top_p": 1e-9},
    {**PLAIN, "top_p": 0.9999},
    {**PLAIN, "min_p": 0.05},
    {**PLAIN, "min_p": 1e-4},
    {**PLAIN, "min_p": 1.0},
    {**PLAIN, "top_p": 0.9, "min_p": 0.02},
    {**PLAIN, "top_p": 0.9, "min_p": 1e-5},
    {**PLAIN, "top_k": 500, "top_p": 0.9, "min_p": 0.001, "temperature": 3.0},
    {"temperature": 100.0, "top_k": 0},
    {"temperature": 0.01, "top_k": 0},
]


def find(logits: Logits, **fields: Any) -> Distribution:
    return Candidates(len(logits)).find(logits, SamplingParameters(**fields))


def probabilities(distribution: Distribution, size: int) -> npt.NDArray[np.float64]:
    """Return every token's probability."""
    result = np.zeros(size)
    tokens = np.arange(size) if distribution.tokens is None else distribution.tokens
    result[tokens] = distribution.weights / distribution.weights.sum(dtype=np.float64)
    return result


def kept_by(distribution: Distribution, logits: Logits) -> npt.NDArray[np.bool_]:
    """Return which tokens are left; forbidden ones do not count."""
    kept = np.zeros(len(logits), np.bool_)
    kept[slice(None) if distribution.tokens is None else distribution.tokens] = True
    return kept & (logits > -np.inf)


def llama(logits: Logits, **fields: Any) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Return which tokens llama.cpp's own samplers leave, and every token's probability."""
    with LlamaChain(len(logits), SamplingParameters(**fields)) as chain:
        chain.fill(logits)
        chain.choose()
        left = chain.left()
    tokens = np.arange(len(logits)) if len(left) == len(logits) else left["token"]
    shares = np.zeros(len(logits))
    shares[left["token"]] = left["probability"]
    return kept_by(Distribution(tokens, left["probability"]), logits), shares


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("fields", CUTS, ids=str)
def test_what_is_left_is_what_llama_cpp_leaves(row: str, fields: dict[str, Any]) -> None:
    logits = ROWS[row]()
    ours = find(logits, **fields)
    kept, shares = llama(logits, **fields)
    # llama.cpp adds up a vocabulary in single precision, one by one: its own edge of top-p is not quite where it says.
    differs = kept != kept_by(ours, logits)
    likely = probabilities(find(logits, **PLAIN), len(logits))
    assert likely[differs].sum() <= (2e-5 if fields.get("top_p", 0.95) < 1 else 0)
    assert np.abs(probabilities(ours, len(logits)) - shares).sum() < 1e-4


@pytest.mark.parametrize("fields", [{}, {"top_k": 0}, {**PLAIN, "top_p": 0.9}], ids=str)
def test_tokens_of_a_large_vocabulary_are_drawn_as_often_as_llama_cpp_finds_them_likely(fields: dict[str, Any]) -> None:
    logits = ROWS["hundreds in the nucleus"]()
    distribution = find(logits, **fields)
    draws = [distribution.draw(uniform(seed, 0, 7)) for seed in range(10_000)]
    value, freedom = chi_square(np.bincount(draws, minlength=len(logits)), llama(logits, **fields)[1])
    assert freedom >= 2, "nothing was tested"
    assert value < chi_square_bound(freedom)


@pytest.mark.parametrize("fields", [{}, {**PLAIN, "top_p": 0.8}], ids=str)
def test_llama_cpp_draws_the_same_tokens_as_often(fields: dict[str, Any]) -> None:
    logits = gumbel(260, 1.0)
    distribution = find(logits, **fields)
    ours = np.bincount([distribution.draw(uniform(seed, 0, 0)) for seed in range(10_000)], minlength=260)
    drawn = []
    with LlamaChain(260, SamplingParameters(seed=11, **fields)) as chain:
        for _ in range(10_000):
            chain.fill(logits)
            drawn.append(chain.choose())
    theirs = np.bincount(drawn, minlength=260)
    often = ours + theirs > 20
    value = ((ours - theirs) ** 2 / np.maximum(ours + theirs, 1))[often].sum()
    assert value < chi_square_bound(int(often.sum()))


# As fine as it matters: logits may differ by so little that their weights are the same.
LOGIT = st.one_of(st.integers(-4000, 4000).map(lambda number: number / 100), st.sampled_from([0.0, 1.0, 2.0, -np.inf]))
ROW = arrays.arrays(np.float32, st.integers(1, 300), elements=LOGIT, fill=LOGIT).filter(
    lambda row: bool((row > -np.inf).any())
)


@given(
    ROW,
    st.integers(1, 12),
    st.integers(0, 400),
    st.floats(0, 1, exclude_min=True),
    st.floats(0, 1),
    st.floats(1e-12, 100),
)
def test_what_is_left_are_the_likeliest_and_no_more_than_it_takes(
    row: Logits, copies: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = np.tile(row, copies)
    found = probabilities(find(logits, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature), len(logits))
    # The plainest way: in order, of equally likely tokens those with the smaller ids first.
    order = np.lexsort((np.arange(len(logits)), -logits))
    order = order[logits[order] > -np.inf][: top_k or None]
    distances = logits[order].astype(np.float64) - logits.max()
    shares = np.exp(distances) / np.exp(distances).sum()
    before = shares.cumsum() - shares
    surely, perhaps = (
        (before < top_p - nudge) & (shares >= min_p * shares[0] * (1 + nudge)) for nudge in (1e-5, -1e-5)
    )
    perhaps[0] = True
    dropped = np.ones(len(logits), np.bool_)
    dropped[order[perhaps]] = False
    assert not found[dropped].any(), "a token is left that is not one of the likeliest"
    weights = np.exp(distances / temperature)
    found = found[order] / found[order[0]]
    assert np.allclose(found[surely], weights[surely], rtol=1e-3, atol=1e-30)


@pytest.mark.parametrize("size", [600, LARGE])
@pytest.mark.parametrize("fields", [{"top_k": 3}, {"top_p": 0.35, "min_p": 0.0}, {"top_k": 40, "top_p": 0.35}], ids=str)
def test_of_equally_likely_tokens_the_first_are_kept(size: int, fields: dict[str, Any]) -> None:
    logits = np.full(size, -5, np.float32)
    logits[[17, 100, 400, 500, size - 1]] = 30
    distribution = find(logits, **{"top_k": 0, **fields})
    kept = [17, 100] if fields.get("top_p", 0.95) < 0.5 else [17, 100, 400]
    assert np.flatnonzero(probabilities(distribution, size)).tolist() == kept


@pytest.mark.parametrize("top_k", [5, 40, 20_000])
def test_forbidden_tokens_are_not_among_the_likeliest(top_k: int) -> None:
    logits = ROWS["nearly all forbidden"]()
    distribution = find(logits, **{**PLAIN, "top_k": top_k})
    assert distribution.tokens is not None
    assert len(distribution.tokens) == min(top_k, np.count_nonzero(logits > -np.inf))


def test_a_flat_row_is_cut_by_token_id() -> None:
    logits = np.zeros(LARGE, np.float32)
    for fields, count in (({"top_k": 40}, 40), ({"top_p": 0.25}, LARGE // 4), ({"min_p": 1.0}, LARGE)):
        found = probabilities(find(logits, **{**PLAIN, **fields}), LARGE)
        assert np.array_equal(np.flatnonzero(found), np.arange(count))


def test_a_row_is_left_as_it_is() -> None:
    for fields in CUTS:
        logits = gumbel(LARGE, 1.0)
        find(logits, **fields)
        assert np.array_equal(logits, gumbel(LARGE, 1.0))


@pytest.mark.parametrize("fields", CUTS, ids=str)
def test_what_was_looked_at_before_makes_no_difference(fields: dict[str, Any]) -> None:
    parameters, candidates = SamplingParameters(**fields), Candidates(LARGE)
    for row in ("almost flat", "nearly all forbidden", "few in the nucleus"):
        logits = ROWS[row]()
        used, fresh = candidates.find(logits, parameters), find(logits, **fields)
        assert np.array_equal(probabilities(used, LARGE), probabilities(fresh, LARGE))


@pytest.mark.parametrize("temperature", [1e-45, 1e-12, 1e-6])
@pytest.mark.parametrize("size", [260, LARGE])
def test_the_coldest_temperature_takes_the_likeliest_token(size: int, temperature: float) -> None:
    logits = gumbel(size, 2.0)
    distribution = find(logits, **{**PLAIN, "temperature": temperature})
    assert {distribution.draw(number) for number in (0.0, 0.5, LAST)} == {int(logits.argmax())}


@pytest.mark.parametrize("size", [260, LARGE])
def test_logits_as_far_apart_as_numbers_go_do_no_harm(size: int) -> None:
    logits = gumbel(size, 2.0)
    logits[7], logits[8] = np.finfo(np.float32).max, np.finfo(np.float32).min
    for fields in CUTS:
        assert find(logits, **fields).draw(0.5) == 7


@pytest.mark.parametrize("size", [1, 300, 5_000, LARGE])
def test_a_draw_falls_where_the_running_sum_exceeds_the_number(size: int) -> None:
    weights = np.random.default_rng(4).exponential(1, size)
    weights[:: max(2, size // 3)] = 0
    weights[-1] = 0 if size > 1 else 1
    shares = weights.cumsum() / weights.sum()
    for number in [*np.random.default_rng(5).random(500), 0.0, LAST]:
        token = Distribution(None, weights).draw(number)
        assert weights[token] > 0
        assert (shares[token - 1] if token else 0.0) <= number + 1e-12
        assert shares[token] >= number - 1e-12


def test_a_draw_names_the_token_and_not_its_place() -> None:
    distribution = Distribution(np.array([5, 9, 70]), np.array([1.0, 0.0, 3.0]))
    assert [distribution.draw(number) for number in (0.0, 0.2499, 0.25, LAST)] == [5, 5, 70, 70]


def test_the_only_token_that_is_allowed_is_drawn() -> None:
    logits = np.full(LARGE, -math.inf, np.float32)
    logits[40_000] = 3.0
    assert find(logits, **PLAIN).draw(LAST) == 40_000

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llamalane.errors import RequestFailedError
from llamalane.streams import SamplingParameters
from llamalane.streams.llama import Candidates, Sampler, Vocabulary
from tests.models.tiny_gguf import EOS

SIZE = 260
WINDOW = 50

Logits = npt.NDArray[np.float32]
MakeSampler = Callable[..., Sampler]


def noise(seed: int = 0) -> Logits:
    return np.random.default_rng(seed).normal(0, 2, SIZE).astype(np.float32)


def peaks(heights: Mapping[int, float]) -> Logits:
    """Logits of −20 for all tokens but these."""
    logits = np.full(SIZE, -20, np.float32)
    for token, height in heights.items():
        logits[token] = height
    return logits


@pytest.fixture
def candidates() -> Candidates:
    return Candidates(SIZE)


@pytest.fixture
def make(vocabulary: Vocabulary) -> Iterator[MakeSampler]:
    """Makes samplers, and closes them when the test is over."""
    made: list[Sampler] = []

    def make_sampler(*, choice: int = 0, history: Sequence[int] = (), **fields: Any) -> Sampler:
        parameters = SamplingParameters(**{"seed": 1, **fields})
        made.append(Sampler(vocabulary, parameters, choice=choice, history=history, window=WINDOW))
        return made[-1]

    yield make_sampler
    for sampler in made:
        sampler.close()
        sampler.close()


GREEDY = [{"temperature": 0.0}, {"top_k": 1}, {"temperature": 0.0, "top_k": 0, "top_p": 0.1}]


@pytest.mark.parametrize("fields", GREEDY)
def test_greedy_takes_the_likeliest_token(make: MakeSampler, candidates: Candidates, fields: dict[str, Any]) -> None:
    sampler = make(**fields)
    for seed in range(20):
        logits = noise(seed)
        assert sampler.choose(logits, seed, candidates) == logits.argmax()


@pytest.mark.parametrize("fields", GREEDY)
def test_greedy_takes_the_likeliest_of_what_a_bias_leaves(
    make: MakeSampler, candidates: Candidates, fields: dict[str, Any]
) -> None:
    logits = peaks({50: 3.0, 60: 2.0})
    assert make(logit_bias={50: -math.inf}, **fields).choose(logits, 0, candidates) == 60
    assert make(logit_bias={60: 1.5}, **fields).choose(logits, 0, candidates) == 60
    assert make(logit_bias={60: 0.5}, **fields).choose(logits, 0, candidates) == 50


def test_choosing_leaves_the_logits_alone(make: MakeSampler, candidates: Candidates) -> None:
    logits = noise()
    make(logit_bias={5: 50.0}, repeat_penalty=1.5, history=[7]).choose(logits, 0, candidates)
    assert np.array_equal(logits, noise())


def test_a_forbidden_token_is_never_drawn(make: MakeSampler, candidates: Candidates) -> None:
    logits = peaks({50: 9.0, 60: 1.0, 61: 1.0})
    sampler = make(logit_bias={50: -math.inf})
    assert {sampler.choose(logits, index, candidates) for index in range(200)} == {60, 61}


def test_a_token_can_be_forced(make: MakeSampler, candidates: Candidates) -> None:
    sampler = make(logit_bias={77: 100.0}, temperature=1.0)
    assert {sampler.choose(noise(index), index, candidates) for index in range(200)} == {77}


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}])
def test_the_end_is_never_chosen_when_it_is_ignored(
    make: MakeSampler, candidates: Candidates, fields: dict[str, Any]
) -> None:
    logits = peaks({EOS: 15.0, 60: 1.0})
    assert make(**fields).choose(logits, 0, candidates) == EOS
    sampler = make(ignore_eos=True, **fields)
    assert {sampler.choose(logits, index, candidates) for index in range(50)} == {60}


def test_ignoring_the_end_wins_over_a_bias_for_it(make: MakeSampler, candidates: Candidates) -> None:
    sampler = make(ignore_eos=True, logit_bias={EOS: 100.0}, temperature=0.0)
    assert sampler.choose(peaks({EOS: 15.0, 60: 1.0}), 0, candidates) == 60


class TestPenalties:
    LOGITS = peaks({50: 3.0, 60: 2.5})

    def first(self, make: MakeSampler, candidates: Candidates, **fields: Any) -> int:
        return make(temperature=0.0, **fields).choose(self.LOGITS, 0, candidates)

    @pytest.mark.parametrize(
        "penalty", [{"repeat_penalty": 1.5}, {"presence_penalty": 1.0}, {"frequency_penalty": 1.0}]
    )
    def test_a_token_that_was_seen_is_less_likely(
        self, make: MakeSampler, candidates: Candidates, penalty: dict[str, float]
    ) -> None:
        assert self.first(make, candidates, history=[50]) == 50
        assert self.first(make, candidates, history=[70], **penalty) == 50
        assert self.first(make, candidates, history=[50], **penalty) == 60

    def test_a_negative_penalty_makes_it_likelier(self, make: MakeSampler, candidates: Candidates) -> None:
        assert self.first(make, candidates, history=[60], presence_penalty=-1.0) == 60

    def test_frequency_counts_and_presence_does_not(self, make: MakeSampler, candidates: Candidates) -> None:
        for times, expected in ((1, 50), (2, 60)):
            assert self.first(make, candidates, history=[50] * times, frequency_penalty=0.3) == expected
            assert self.first(make, candidates, history=[50] * times, presence_penalty=0.3) == 50

    @pytest.mark.parametrize(("last", "expected"), [(2, 50), (3, 60), (-1, 60), (10**6, 60), (0, 50)])
    def test_only_so_many_last_tokens_count(
        self, make: MakeSampler, candidates: Candidates, last: int, expected: int
    ) -> None:
        history = [50, 70, 71]
        assert self.first(make, candidates, history=history, presence_penalty=1.0, repeat_last_n=last) == expected

    @pytest.mark.parametrize("last", [-1, 10**6])
    def test_no_more_tokens_count_than_fit_a_sequence(
        self, make: MakeSampler, candidates: Candidates, last: int
    ) -> None:
        for earlier, expected in ((WINDOW - 1, 60), (WINDOW, 50)):
            history = [50] + [70] * earlier
            assert self.first(make, candidates, history=history, presence_penalty=1.0, repeat_last_n=last) == expected

    def test_what_was_chosen_counts_too(self, make: MakeSampler, candidates: Candidates) -> None:
        sampler = make(temperature=0.0, presence_penalty=1.0, repeat_last_n=1)
        assert [sampler.choose(self.LOGITS, index, candidates) for index in range(4)] == [50, 60, 50, 60]


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"temperature": 0.0, "presence_penalty": 1.0}])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_fail_the_request(
    make: MakeSampler, candidates: Candidates, fields: dict[str, Any], value: float
) -> None:
    broken = noise()
    broken[:] = value
    with pytest.raises(RequestFailedError, match="not finite"):
        make(**fields).choose(broken, 0, candidates)


@pytest.mark.parametrize("fields", [{}, {"top_k": 0}, {"temperature": 0.0}])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_number_that_is_not_finite_is_enough_to_fail(
    make: MakeSampler, candidates: Candidates, fields: dict[str, Any], value: float
) -> None:
    broken = noise()
    broken[100] = value
    with pytest.raises(RequestFailedError, match="not finite"):
        make(**fields).choose(broken, 0, candidates)


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}])
def test_when_every_token_is_forbidden_the_request_fails(
    make: MakeSampler, candidates: Candidates, fields: dict[str, Any]
) -> None:
    sampler = make(logit_bias=dict.fromkeys(range(SIZE), -math.inf), **fields)
    with pytest.raises(RequestFailedError, match="all are forbidden"):
        sampler.choose(noise(), 0, candidates)


def test_a_failed_choice_harms_neither_the_sampler_nor_its_neighbours(
    make: MakeSampler, candidates: Candidates
) -> None:
    sampler, undisturbed = make(), make()
    with pytest.raises(RequestFailedError):
        sampler.choose(np.full(SIZE, np.nan, np.float32), 0, candidates)
    for index in range(20):
        expected = undisturbed.choose(noise(index), index, Candidates(SIZE))
        assert sampler.choose(noise(index), index, candidates) == expected

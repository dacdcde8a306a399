from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest

from llamalane.errors import InvalidRequestError
from llamalane.streams import SamplingParameters

BOUNDS = {
    "max_tokens": (1, 2**31 - 1),
    "temperature": (0, 100),
    "top_k": (0, 2**31 - 1),
    "min_p": (0, 1),
    "repeat_last_n": (-1, 2**31 - 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "seed": (0, 2**64 - 1),
    "logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
}
OPEN_BELOW = {"top_p": 1, "repeat_penalty": 100}
"""Above 0, and at most this."""
WHOLE = ["max_tokens", "top_k", "repeat_last_n", "seed", "logprobs", "prompt_logprobs"]


def allowed(**fields: Any) -> SamplingParameters:
    return SamplingParameters(**fields)


def refused(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        allowed(**fields)
    assert caught.value.param == next(iter(fields))
    return caught.value


@pytest.mark.parametrize("name", BOUNDS)
def test_both_ends_of_a_range_are_allowed(name: str) -> None:
    for value in BOUNDS[name]:
        assert getattr(allowed(**{name: value}), name) == value


@pytest.mark.parametrize("name", BOUNDS)
def test_a_value_outside_names_the_field_the_range_and_the_value(name: str) -> None:
    lowest, highest = BOUNDS[name]
    for value in (lowest - 1, highest + 1):
        assert str(refused(**{name: value})) == f"{name} must be from {lowest} to {highest}; got {value}"


@pytest.mark.parametrize("name", OPEN_BELOW)
def test_a_range_that_is_open_below(name: str) -> None:
    highest = OPEN_BELOW[name]
    for end in (1e-9, highest):
        allowed(**{name: end})
    for value in (0, -1, highest * 1.01):
        assert str(refused(**{name: value})) == f"{name} must be above 0 and at most {highest}; got {value!r}"


@pytest.mark.parametrize("name", [*BOUNDS, *OPEN_BELOW])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", True, [1], 1 + 0j])
def test_what_is_not_a_finite_number_is_refused(name: str, value: object) -> None:
    assert repr(value) in str(refused(**{name: value}))


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [1.0, 1.5])
def test_what_counts_things_is_a_whole_number(name: str, value: float) -> None:
    assert f"got {value}" in str(refused(**{name: value}))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(SamplingParameters)])
def test_only_what_may_be_left_open_can_be_none(name: str) -> None:
    if name in ("grammar", "logprobs", "max_tokens", "prompt_logprobs", "seed"):
        assert getattr(allowed(**{name: None}), name) is None
    else:
        refused(**{name: None})


@pytest.mark.parametrize("bias", [-100, 100, 0, 0.5, -math.inf])
def test_a_bias_in_range_is_allowed(bias: float) -> None:
    assert SamplingParameters(logit_bias={7: bias}).logit_bias == {7: bias}


@pytest.mark.parametrize("bias", [-100.1, 101, math.inf, math.nan, "1", None, True])
def test_a_bias_outside_is_refused_with_its_token(bias: Any) -> None:
    message = re.escape(f"logit_bias must be from -100 to 100, or -inf; got {bias!r} for token 7")
    assert re.fullmatch(message, str(refused(logit_bias={7: bias})))


@pytest.mark.parametrize("token", ["7", 1.5, True, None, -1])
def test_a_biased_token_is_a_whole_number(token: Any) -> None:
    assert repr(token) in str(refused(logit_bias={token: 1.0}))


@pytest.mark.parametrize("bias", [[(1, 2.0)], "abc", 3])
def test_biases_are_a_mapping(bias: Any) -> None:
    refused(logit_bias=bias)


def test_stop_strings_in_range_are_allowed() -> None:
    stop = ("x" * 1024, *("y",) * 15)
    assert SamplingParameters(stop=stop).stop == stop


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (("x",) * 17, "at most 16 stop strings are allowed; got 17"),
        (("",), "from 1 to 1024 characters; got 0"),
        (("x" * 1025,), "from 1 to 1024 characters; got 1025"),
        (("ok", 3), "stop must be a sequence of strings; got ('ok', 3)"),
        ("word", "stop must be a sequence of strings; got 'word'"),
        (3, "stop must be a sequence of strings; got 3"),
    ],
)
def test_stop_strings_out_of_range_are_refused(stop: Any, message: str) -> None:
    assert message in str(refused(stop=stop))


@pytest.mark.parametrize("value", [1, "yes", None])
def test_ignoring_the_end_is_yes_or_no(value: Any) -> None:
    refused(ignore_eos=value)


def test_unset_fields_are_what_llama_server_takes() -> None:
    unset = SamplingParameters()
    assert (unset.temperature, unset.top_k, unset.top_p, unset.min_p) == (0.8, 40, 0.95, 0.05)
    assert (unset.repeat_penalty, unset.repeat_last_n) == (1.0, 64)
    assert (unset.presence_penalty, unset.frequency_penalty) == (0.0, 0.0)
    assert unset.seed is None
    assert not unset.ignore_eos


@pytest.mark.parametrize(
    ("fields", "greedy"), [({}, False), ({"temperature": 0}, True), ({"top_k": 1}, True), ({"top_k": 2}, False)]
)
def test_who_is_greedy(fields: dict[str, Any], greedy: bool) -> None:
    assert SamplingParameters(**fields).greedy is greedy


@pytest.mark.parametrize(
    ("fields", "penalizes"),
    [
        ({}, False),
        ({"repeat_penalty": 1.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, False),
        ({"repeat_penalty": 1.1, "repeat_last_n": -1}, True),
    ],
)
def test_who_penalizes(fields: dict[str, Any], penalizes: bool) -> None:
    assert SamplingParameters(**fields).penalizes is penalizes

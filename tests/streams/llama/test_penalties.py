"""Penalties change the logits as llama.cpp's own sampler does, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamalane.bench.llama_chain import LlamaChain
from llamalane.streams import SamplingParameters
from llamalane.streams.llama.penalties import Penalties

SIZE = 260
WINDOW = 40
TOKENS = st.lists(st.integers(0, 9), max_size=30)


@given(
    history=TOKENS,
    chosen=TOKENS,
    repeat=st.floats(0.1, 10),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
    last=st.integers(1, WINDOW),
)
def test_logits_change_as_with_llama_cpp(
    history: list[int], chosen: list[int], repeat: float, frequency: float, presence: float, last: int
) -> None:
    parameters = SamplingParameters(
        repeat_penalty=repeat,
        frequency_penalty=frequency,
        presence_penalty=presence,
        repeat_last_n=last,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
    )
    logits = np.random.default_rng(1).normal(0, 3, SIZE).astype(np.float32)
    penalties = Penalties(parameters, history, WINDOW)
    with LlamaChain(SIZE, parameters, history) as chain:
        for token in chosen:
            penalties.accept(token)
            chain.accept(token)
        ours = logits.copy()
        penalties.apply(ours)
        chain.fill(logits)
        chain.choose()
        theirs = chain.left()["logit"] if parameters.penalizes else logits
    assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fields", [{"repeat_penalty": 1e-40}, {"repeat_penalty": 100.0}])
def test_logits_that_leave_their_range_do_so_in_silence(fields: dict[str, Any]) -> None:
    logits = np.array([3e38, -3e38, -np.inf, 0.0], np.float32)
    Penalties(SamplingParameters(**fields), [0, 1, 2, 3], WINDOW).apply(logits)
    assert logits[2] == -np.inf, "a forbidden token is allowed"

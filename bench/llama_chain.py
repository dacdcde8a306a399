"""llama.cpp's own samplers, in the order in which llama-server runs them: what llamalane's are compared with."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from llamalane.streams import SamplingParameters
from llamalane.streams.llama import library

_TOKEN_DATA = np.dtype([("token", np.int32), ("logit", np.float32), ("probability", np.float32)])  # llama_token_data


class LlamaChain:
    """A chain of llama.cpp's samplers; `history` is what the penalties look at first. Use it in a `with` block."""

    def __init__(self, vocabulary_size: int, parameters: SamplingParameters, history: Sequence[int] = ()) -> None:
        self._api = api = library().api
        self._ids = np.arange(vocabulary_size, dtype=np.int32)
        self._table = np.zeros(vocabulary_size, _TOKEN_DATA)
        self._array = api.llama_token_data_array()
        self._data = ctypes.cast(self._table.ctypes.data, api.llama_token_data_p)
        self._chain: Any = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        for sampler in _samplers(api, vocabulary_size, parameters):
            api.llama_sampler_chain_add(self._chain, sampler)
        for token in history:
            self.accept(token)

    def fill(self, logits: npt.NDArray[np.float32]) -> None:
        """List every token with its logit, as llama.cpp has to do for each token to be chosen."""
        fields = self._table.view(np.int32).reshape(-1, 3)  # to which it is much quicker to copy
        fields[:, 0] = self._ids
        fields[:, 1] = logits.view(np.int32)
        self._array.data = self._data
        self._array.size = len(self._table)
        self._array.selected = -1
        self._array.sorted = False

    def choose(self) -> int:
        """Return the token that the chain chooses of those that were listed."""
        self._api.llama_sampler_apply(self._chain, ctypes.byref(self._array))
        return int(self._table["token"][self._array.selected])

    def left(self) -> npt.NDArray[Any]:
        """Return the `token`, `logit` and `probability` of each of those that the last choice was among."""
        return self._table[: self._array.size].copy()

    def accept(self, token: int) -> None:
        """Let the penalties know of a token."""
        self._api.llama_sampler_accept(self._chain, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._api.llama_sampler_free(self._chain)


def _samplers(api: Any, vocabulary_size: int, parameters: SamplingParameters) -> list[Any]:
    samplers = []
    if parameters.logit_bias:
        entries = (api.llama_logit_bias * len(parameters.logit_bias))(*parameters.logit_bias.items())
        samplers.append(api.llama_sampler_init_logit_bias(vocabulary_size, len(entries), entries))
    if parameters.penalizes:
        samplers.append(
            api.llama_sampler_init_penalties(
                vocabulary_size,
                parameters.repeat_last_n,
                parameters.repeat_penalty,
                parameters.frequency_penalty,
                parameters.presence_penalty,
            )
        )
    if parameters.greedy:
        return [*samplers, api.llama_sampler_init_greedy()]
    if parameters.top_k > 0:
        samplers.append(api.llama_sampler_init_top_k(parameters.top_k))
    if parameters.top_p < 1:
        samplers.append(api.llama_sampler_init_top_p(parameters.top_p, 1))
    if parameters.min_p > 0:
        samplers.append(api.llama_sampler_init_min_p(parameters.min_p, 1))
    samplers.append(api.llama_sampler_init_temp(parameters.temperature))
    samplers.append(api.llama_sampler_init_dist((parameters.seed or 0) % 2**32))
    return samplers

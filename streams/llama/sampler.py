"""Chooses a row's next token from its logits.

llama.cpp's samplers change and cut down the candidates; the draw among those left is ours. Its random number is not
the next one of a stream but a function of seed, choice and token index, so a request that was interrupted draws on
exactly as it would have, without a replay. Candidates are laid out by token id, not by probability, before the draw:
two that are almost equally likely then cannot change places when a number differs in its last bit.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llamalane.errors import RequestFailedError
from llamalane.streams.llama.grammar import Follower
from llamalane.streams.llama.library import library
from llamalane.streams.llama.vocabulary import Vocabulary
from llamalane.streams.sampling import SamplingParameters

_CANDIDATE = np.dtype([("token", np.int32), ("logit", np.float32), ("probability", np.float32)])  # llama_token_data


def uniform(seed: int, choice: int, index: int) -> float:
    """Return the random number in [0, 1) for the token `index` of a request's output.

    A counter-based generator: a keyed hash (BLAKE2b) of the counter, with the seed as its key.
    """
    key = struct.pack("<Q", seed)
    digest = hashlib.blake2b(struct.pack("<QQ", choice, index), digest_size=8, key=key).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


class Candidates:
    """A lane's scratch array of every token with its logit, in llama.cpp's layout."""

    def __init__(self, vocabulary_size: int) -> None:
        api = library().api
        self._ids = np.arange(vocabulary_size, dtype=np.int32)
        self._table = np.zeros(vocabulary_size, _CANDIDATE)
        self._array = api.llama_token_data_array()
        self._data = ctypes.cast(self._table.ctypes.data, api.llama_token_data_p)

    def reduce(self, chain: Any, logits: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Run a chain of samplers over `logits` and return the candidates that it leaves."""
        self._table["token"] = self._ids
        self._table["logit"] = logits
        self._array.data = self._data
        self._array.size = len(self._table)
        self._array.selected = -1
        self._array.sorted = False
        library().api.llama_sampler_apply(chain, ctypes.byref(self._array))
        return self._table[: self._array.size]


class Sampler:
    """The chain of one sequence. Closing twice is allowed.

    `history` is what came before: with penalties, its last tokens count. `follower` keeps the output within a grammar.
    """

    complete = False
    """Whether the output is complete by its grammar with the token that was chosen last."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        parameters: SamplingParameters,
        *,
        choice: int,
        history: Sequence[int],
        window: int,
        follower: Follower | None = None,
    ) -> None:
        self._api = library().api
        self._parameters = parameters
        self._choice = choice
        self._follower = follower
        self._chain: Any = self._api.llama_sampler_chain_init(self._api.llama_sampler_chain_default_params())
        self._bypass = parameters.greedy
        self._add_logit_bias(vocabulary)
        if parameters.penalizes:
            last = window if parameters.repeat_last_n < 0 else min(parameters.repeat_last_n, window)
            self._add(
                self._api.llama_sampler_init_penalties(
                    vocabulary.size,
                    last,
                    parameters.repeat_penalty,
                    parameters.frequency_penalty,
                    parameters.presence_penalty,
                )
            )
            for token in history[-last:]:
                self._api.llama_sampler_accept(self._chain, token)
        if not parameters.greedy:
            self._add_cuts()

    def choose(self, logits: npt.NDArray[np.float32], index: int, candidates: Candidates) -> int:
        """Choose the token `index` of the output; raises `RequestFailedError` when no token can be chosen.

        With a grammar, `logits` are changed in place.
        """
        if self._follower is None:
            return self._choose(logits, index, candidates)
        mask = self._follower.mask()
        if mask.end is not None:
            return mask.end
        logits += mask.bias
        token = self._choose(logits, index, candidates)
        if token not in self._follower.ends:
            self.complete = self._follower.accept(token)
        return token

    def _choose(self, logits: npt.NDArray[np.float32], index: int, candidates: Candidates) -> int:
        token = _likeliest(logits)
        if not self._bypass:
            left = candidates.reduce(self._chain, logits)
            place = _likeliest(left["logit"])
            token = int(left["token"][place]) if self._parameters.greedy else self._draw(left, index)
        if self._parameters.penalizes:
            self._api.llama_sampler_accept(self._chain, token)
        return token

    def close(self) -> None:
        """Free the chain, and follow the grammar no further."""
        if self._follower is not None:
            self._follower.close()
        if self._chain:
            self._api.llama_sampler_free(self._chain)
            self._chain = None

    def _draw(self, left: npt.NDArray[Any], index: int) -> int:
        assert self._parameters.seed is not None
        order = left["token"].argsort()
        cumulative = cumulative_distribution(left["logit"][order])
        place = int(cumulative.searchsorted(uniform(self._parameters.seed, self._choice, index), side="right"))
        return int(left["token"][order[min(place, len(order) - 1)]])

    def _add(self, sampler: Any) -> None:
        self._api.llama_sampler_chain_add(self._chain, sampler)
        self._bypass = False

    def _add_logit_bias(self, vocabulary: Vocabulary) -> None:
        bias = dict(self._parameters.logit_bias)
        if self._parameters.ignore_eos:
            bias.update(dict.fromkeys(vocabulary.end_of_generation, -np.inf))
        if bias:
            entries = (self._api.llama_logit_bias * len(bias))(*bias.items())
            self._add(self._api.llama_sampler_init_logit_bias(vocabulary.size, len(bias), entries))

    def _add_cuts(self) -> None:
        """Add what cuts down the candidates, in llama-server's order."""
        parameters = self._parameters
        if parameters.top_k > 0:
            self._add(self._api.llama_sampler_init_top_k(parameters.top_k))
        if parameters.top_p < 1:
            self._add(self._api.llama_sampler_init_top_p(parameters.top_p, 1))
        if parameters.min_p > 0:
            self._add(self._api.llama_sampler_init_min_p(parameters.min_p, 1))
        self._add(self._api.llama_sampler_init_temp(parameters.temperature))


def _likeliest(logits: npt.NDArray[np.float32]) -> int:
    place = int(logits.argmax())  # of the first NaN, if there is one
    if not np.isfinite(logits[place]):
        raise RequestFailedError("no token can be chosen: the model's numbers are not finite, or all are forbidden")
    return place


def cumulative_distribution(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the running sum of the softmax of `logits`, which ends at 1."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    cumulative: npt.NDArray[np.float64] = weights.cumsum()
    cumulative /= cumulative[-1]
    return cumulative

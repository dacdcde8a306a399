"""Finds what a row's next token is drawn from: which tokens the cuts leave, and how likely each of them is.

The cuts are llama.cpp's top-k, top-p and min-p, in llama-server's order. Each keeps the largest logits down to some
threshold, so none needs the vocabulary in order: the threshold is found, and what lies below it dropped, in a few
passes over the row, which the processor's vector units carry out. Tokens stay in the order of their ids throughout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llamalane.errors import RequestFailedError
from llamalane.streams.sampling import SamplingParameters

Logits = npt.NDArray[np.float32]
Weights = npt.NDArray[np.floating[Any]]
Tokens = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

_LOWEST = np.finfo(np.float32).min
"""Every logit is at least this, but those of forbidden tokens, which are −∞."""
_COLUMNS = 1024
"""For top-k a row is laid out in so many columns, and in more for a large k."""
_FEW = 4096
"""Up to so many tokens are weighed in double precision. It takes longer, and of more tokens each counts less."""
_SORTED = 1024
"""Up to so many weights are put in order as they are."""
_SAMPLES = 32
"""Of more, so many samples tell which ones have to be."""
_BLOCK = 256
"""Weights are added up in blocks of so many, then one by one in the block that a random number falls on."""
_COLDEST = 1e-30
"""Below this, a temperature makes no difference."""
_MARGIN = 1 - 1e-5
"""Keeps a threshold that is there to save work from dropping, by a rounding error, what a cut would keep."""
_BELOW_ONE = 1 - 2.0**-53


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a token is drawn from: its weight, as a share of the sum of all, is a token's probability.

    `tokens` are ids in ascending order, None for the whole vocabulary. Valid until the next row is looked at.
    """

    tokens: Tokens | None
    weights: Weights

    def draw(self, number: float) -> int:
        """Return the token that `number`, from [0, 1), falls on when the probabilities are laid end to end.

        They are laid out by token id, not by size: two that are almost equally likely then cannot change places when a
        logit differs in its last bit.
        """
        place = _place(self.weights, number)
        return place if self.tokens is None else int(self.tokens[place])


@dataclass(frozen=True, slots=True)
class _Left:
    """What cuts have left: `tokens` as in `Distribution`, and their logits."""

    tokens: Tokens | None
    logits: Logits


class Candidates:
    """Looks at rows of logits, one after the other, in memory that is a lane's."""

    def __init__(self, vocabulary_size: int) -> None:
        self.changed: Logits = np.empty(vocabulary_size, np.float32)
        """Room for a row with changes."""
        self._weights: Logits = np.empty(vocabulary_size, np.float32)
        self._parts: Logits = np.empty(vocabulary_size, np.float32)
        self._mask: Mask = np.empty(vocabulary_size, np.bool_)

    def find(self, logits: Logits, parameters: SamplingParameters) -> Distribution:
        """Return what the next token is drawn from, at a temperature above 0.

        A cut that has room for some of several equally likely tokens keeps those with the smallest ids. Raises
        `RequestFailedError` when no token can be chosen.
        """
        best = logits[likeliest(logits)]
        left = _Left(None, logits)
        with np.errstate(over="ignore"):  # a logit too far below the best for a number to tell is as good as −∞
            if 0 < parameters.top_k < len(logits):
                left = self._top_k(left, parameters.top_k)
            if parameters.top_p < 1:
                left = self._top_p(left, best, parameters)
            elif parameters.min_p > 0:
                left = _gather(left, self._reaching(left.logits, best + np.float32(math.log(parameters.min_p))))
            return Distribution(left.tokens, self._weigh(left.logits, best, parameters.temperature))

    def _top_k(self, left: _Left, count: int) -> _Left:
        """Keep the `count` largest logits.

        A threshold that the largest logits of so many columns reach is reached by as many logits at least. The highest
        one of that kind leaves hardly more.
        """
        columns = max(_COLUMNS, 4 * count)
        rows = len(left.logits) // columns
        if rows > 1:
            largest = np.maximum.reduce(left.logits[: rows * columns].reshape(rows, columns))
            left = _gather(left, self._reaching(left.logits, _nth_largest(largest, count)))
        if len(left.logits) <= count:
            return left
        return _gather(left, self._largest(left.logits, _nth_largest(left.logits, count), count))

    def _top_p(self, left: _Left, best: np.float32, parameters: SamplingParameters) -> _Left:
        """Keep the fewest largest logits whose probabilities add up to top-p, and of them what min-p keeps."""
        weights = self._weigh(left.logits, best, 1.0)
        total = _sum(weights)
        wanted = parameters.top_p * total
        if len(weights) > _SORTED:
            negligible = (total - wanted) / len(weights)  # smaller ones do not add up to what may be missing
            mask = self._reaching(weights, max(negligible, parameters.min_p) * _MARGIN)
            if np.count_nonzero(mask) < len(mask) // 2:  # else it is quicker to pass over the others a few times
                left = _gather(left, mask)
                weights = self._weigh(left.logits, best, 1.0)
                wanted = min(wanted, _sum(weights))
        threshold, count = self._nucleus(weights, wanted)
        if threshold < parameters.min_p:
            return _gather(left, self._reaching(weights, parameters.min_p))
        return _gather(left, self._largest(weights, threshold, count))

    def _nucleus(self, weights: Weights, wanted: float) -> tuple[float, int]:
        """Return the smallest of the fewest largest weights that add up to `wanted`, and how many they are.

        All weights together add up to no less.
        """
        above, count = 0.0, 0
        if len(weights) > _SORTED:
            samples = weights[:: len(weights) // _SAMPLES].copy()
            samples.sort()
            low, high = 0, len(samples)
            while low < high:  # how many samples are at or below the threshold
                middle = (low + high) // 2
                mask = self._reaching(weights, samples[middle])
                total = _sum(np.multiply(weights, mask, out=self._parts[: len(weights)]))
                if total >= wanted:
                    low = middle + 1
                else:
                    high, above, count = middle, total, int(np.count_nonzero(mask))
            mask = self._reaching(weights, samples[low - 1] if low else 0)
            if high < len(samples):
                mask &= weights < samples[high]
            weights = weights[mask.nonzero()]
        ascending = weights.copy()
        ascending.sort()
        ordered = ascending[::-1]
        place = min(int(ordered.cumsum(dtype=np.float64).searchsorted(wanted - above)), len(ordered) - 1)
        return float(ordered[place]), count + place + 1

    def _reaching(self, values: Weights, threshold: float | np.floating[Any]) -> Mask:
        """Return which values are at least `threshold`; the mask lasts until the next one."""
        return np.greater_equal(values, threshold, out=self._mask[: len(values)])

    def _largest(self, values: Weights, threshold: float | np.floating[Any], count: int) -> Mask:
        """Return which are the `count` largest values, of which the smallest is `threshold`; of equal ones the first.

        The mask lasts until the next one.
        """
        mask = self._reaching(values, threshold)
        surplus = int(np.count_nonzero(mask)) - count
        if surplus > 0:
            mask[(values == threshold).nonzero()[0][-surplus:]] = False
        return mask

    def _weigh(self, logits: Logits, best: np.float32, temperature: float) -> Weights:
        """Return the weights of tokens, that of the likeliest being 1; many last until the next are weighed."""
        temperature = max(temperature, _COLDEST)
        if len(logits) <= _FEW:
            return np.exp((logits.astype(np.float64) - best) / temperature)
        weights = np.subtract(logits, best, out=self._weights[: len(logits)])
        if temperature != 1:
            weights /= temperature
        return np.exp(weights, out=weights)


def likeliest(logits: Logits) -> int:
    """Return the token with the largest logit, of several the first one.

    Raises `RequestFailedError` when that is not a finite number, or none of them is one.
    """
    token = int(logits.argmax())  # of the first NaN, if there is one
    if not math.isfinite(logits[token]):
        raise RequestFailedError("no token can be chosen: the model's numbers are not finite, or all are forbidden")
    return token


def _gather(left: _Left, mask: Mask) -> _Left:
    places = mask.nonzero()[0]
    return _Left(places if left.tokens is None else left.tokens[places], left.logits[places])


def _nth_largest(logits: Logits, n: int) -> np.float32:
    """Return the n-th largest logit, or where that token is forbidden, what all others reach."""
    place = len(logits) - n
    parted = logits.copy()
    parted.partition(place)
    return max(parted[place], _LOWEST)


def _sum(weights: Weights) -> float:
    return float(np.add.reduce(weights))  # pairwise: in single precision too, the error is in the seventh digit


def _place(weights: Weights, number: float) -> int:
    """Return the place at which the running sum of `weights`, as a share of the whole, exceeds `number`."""
    if len(weights) <= 2 * _BLOCK:
        return int(_shares(weights).searchsorted(number, side="right"))
    starts = np.arange(0, len(weights), _BLOCK)
    ends = _shares(np.add.reduceat(weights, starts, dtype=np.float64))
    block = int(ends.searchsorted(number, side="right"))
    begin = ends[block - 1] if block else 0.0
    within = min(float((number - begin) / (ends[block] - begin)), _BELOW_ONE)
    start = int(starts[block])
    return start + _place(weights[start : start + _BLOCK], within)


def _shares(weights: Weights) -> npt.NDArray[np.float64]:
    """Return the running sum of `weights` as shares of the whole: the last that is not 0 ends at exactly 1."""
    shares = weights.cumsum(dtype=np.float64)
    shares /= shares[-1]
    return shares

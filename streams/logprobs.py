"""How likely the tokens of a sequence were, by the model's logits as it gave them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llamalane.errors import RequestFailedError
from llamalane.streams.token_scores import TokenScores

_GROUPS = 512
"""Into so many groups a vocabulary is divided to find its likeliest tokens."""


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the log probability of each token; changes nothing of `logits`, and what becomes of them is no matter.

    Raises `RequestFailedError` when the model's numbers are not finite; −∞ is a probability of 0.
    """
    best = logits.max()
    if not np.isfinite(best):
        raise RequestFailedError("no token has a probability: the model's numbers are not finite")
    logprobs: npt.NDArray[np.float32] = logits - best
    logprobs -= np.float32(np.log(np.exp(logprobs).sum(dtype=np.float64)))
    return logprobs


def scores_of(logprobs: npt.NDArray[np.float32], token: int, count: int) -> TokenScores:
    """Return what `logprobs` say of `token`, beside the `count` likeliest tokens."""
    places = _likeliest(logprobs, min(count, len(logprobs)))
    likeliest = zip(places.tolist(), logprobs[places].tolist(), strict=True)
    return TokenScores(token, float(logprobs[token]), tuple(likeliest))


def score_all(logits: npt.NDArray[np.float32], tokens: Sequence[int], count: int) -> tuple[TokenScores, ...]:
    """Return the scores of several tokens, each by its row of `logits`, of which there may be more.

    Raises what `log_softmax` raises.
    """
    return tuple(scores_of(log_softmax(row), token, count) for row, token in zip(logits, tokens, strict=False))


def _likeliest(logprobs: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.intp]:
    """Return the `count` likeliest tokens in order; of equals, the smaller one first."""
    if count == 0:
        return np.empty(0, np.intp)
    heads = logprobs
    if len(logprobs) >= 2 * _GROUPS:
        # As many tokens as groups are at least as likely as the last of the likeliest groups' heads: so all others
        # need only be compared with it.
        rows = len(logprobs) // _GROUPS
        heads = logprobs[: rows * _GROUPS].reshape(rows, _GROUPS).max(axis=0)
    least = np.partition(heads, len(heads) - count)[len(heads) - count]
    places = np.flatnonzero(logprobs >= least)
    return places[np.lexsort((places, -logprobs[places]))[:count]]

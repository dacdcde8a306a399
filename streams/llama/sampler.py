"""Chooses a row's next token from its logits.

What changes the logits and cuts down the candidates is llama.cpp's, though computed here: it takes a fraction of the
time. The draw among those left is ours. Its random number is not the next one of a stream but a function of seed,
choice and token index, so a request that was interrupted draws on exactly as it would have, without a replay.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llamalane.streams.llama.candidates import Candidates, likeliest
from llamalane.streams.llama.grammar import Follower
from llamalane.streams.llama.penalties import Penalties
from llamalane.streams.llama.vocabulary import Vocabulary
from llamalane.streams.sampling import SamplingParameters


def uniform(seed: int, choice: int, index: int) -> float:
    """Return the random number in [0, 1) for the token `index` of a request's output.

    A counter-based generator: a keyed hash (BLAKE2b) of the counter, with the seed as its key.
    """
    key = struct.pack("<Q", seed)
    digest = hashlib.blake2b(struct.pack("<QQ", choice, index), digest_size=8, key=key).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


class Sampler:
    """Chooses the tokens of one sequence. Closing twice is allowed.

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
        self._parameters = parameters
        self._choice = choice
        self._follower = follower
        bias = dict(parameters.logit_bias)
        if parameters.ignore_eos:
            bias.update(dict.fromkeys(vocabulary.end_of_generation, -np.inf))
        self._biased = np.fromiter(bias, np.intp, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._penalties = Penalties(parameters, history, window) if parameters.penalizes else None

    def choose(self, logits: npt.NDArray[np.float32], index: int, candidates: Candidates) -> int:
        """Choose the token `index` of the output; raises `RequestFailedError` when no token can be chosen.

        `logits` are left as they are.
        """
        if self._follower is None:
            return self._choose(logits, index, candidates)
        mask = self._follower.mask()
        if mask.end is not None:
            return mask.end
        allowed = np.add(logits, mask.bias, out=candidates.changed)
        token = self._choose(allowed, index, candidates)
        if token not in self._follower.ends:
            self.complete = self._follower.accept(token)
        return token

    def close(self) -> None:
        """Follow the grammar no further."""
        if self._follower is not None:
            self._follower.close()

    def _choose(self, logits: npt.NDArray[np.float32], index: int, candidates: Candidates) -> int:
        logits = self._change(logits, candidates)
        if self._parameters.greedy:
            token = likeliest(logits)
        else:
            assert self._parameters.seed is not None
            number = uniform(self._parameters.seed, self._choice, index)
            token = candidates.find(logits, self._parameters).draw(number)
        if self._penalties is not None:
            self._penalties.accept(token)
        return token

    def _change(self, logits: npt.NDArray[np.float32], candidates: Candidates) -> npt.NDArray[np.float32]:
        """Return the logits with biases and penalties."""
        if not len(self._biased) and self._penalties is None:
            return logits
        if logits is not candidates.changed:
            np.copyto(candidates.changed, logits)
        candidates.changed[self._biased] += self._bias
        if self._penalties is not None:
            self._penalties.apply(candidates.changed)
        return candidates.changed

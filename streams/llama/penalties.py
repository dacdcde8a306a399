"""Makes tokens less likely that came up lately, as llama.cpp does it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llamalane.streams.sampling import SamplingParameters


class Penalties:
    """The penalties of one sequence, of which `history` came before. No more than `window` tokens ever count."""

    def __init__(self, parameters: SamplingParameters, history: Sequence[int], window: int) -> None:
        self._parameters = parameters
        last = window if parameters.repeat_last_n < 0 else min(parameters.repeat_last_n, window)
        self._recent = deque(history[-last:], last)
        self._counts = Counter(self._recent)

    def apply(self, logits: npt.NDArray[np.float32]) -> None:
        """Lower the logits of the recent tokens, in place."""
        parameters = self._parameters
        tokens = np.fromiter(self._counts, np.intp, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        seen = logits[tokens]
        with np.errstate(all="ignore"):  # where numbers leave their range, the choice fails
            # Divided, a negative logit would become more likely.
            seen = np.where(seen <= 0, seen * parameters.repeat_penalty, seen / parameters.repeat_penalty)
            seen -= counts * parameters.frequency_penalty + parameters.presence_penalty
        logits[tokens] = seen

    def accept(self, token: int) -> None:
        """Let the next token count."""
        if len(self._recent) == self._recent.maxlen:
            oldest = self._recent[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._recent.append(token)
        self._counts[token] += 1

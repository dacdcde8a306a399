"""How the numbers of a text's tokens become one vector."""

from __future__ import annotations

import enum


class Pooling(enum.Enum):
    """What of its tokens' numbers stands for a whole text."""

    MEAN = "mean"
    """Their mean."""
    CLS = "cls"
    """Those of the first token."""
    LAST = "last"
    """Those of the last token."""
    RANK = "rank"
    """Scores, which the model's own head computes of them."""


POOLING_NUMBERS = {Pooling.MEAN: 1, Pooling.CLS: 2, Pooling.LAST: 3, Pooling.RANK: 4}
"""llama.cpp's numbers for them (llama.h: llama_pooling_type)."""


def pooling_numbered(number: int) -> Pooling | None:
    """Return the pooling with llama.cpp's `number`, None for one that gives no vector for a text."""
    return next((pooling for pooling, own in POOLING_NUMBERS.items() if own == number), None)

"""What is told of how likely a token was."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenScores:
    """A token's log probability, and those of the likeliest tokens in its place, the likeliest first."""

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()

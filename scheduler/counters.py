"""Counts of what happened since the start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class Counters:
    """What happened since the start.

    `in_time` counts the finished requests that had their tokens as quickly as their level's target asks (goodput),
    `rejected` refusals at submission by their reason, `parks` how often requests were parked by the way, `handovers`
    how often one left the lane that had computed its prompt for another one. `reasons` counts parks by their reason,
    `deadlines_missed` those by what the request was about, and `finish_reasons` why outputs ended.

    Of the requests that got so far as to have a first token, `queried_tokens` are the prompts', `hit_tokens` those of
    them that were in the KV cache, and `hits` counts the requests that had any there. The bytes are those of parked
    requests' cells, which went to host memory and came back.
    """

    admitted: int = 0
    finished: int = 0
    in_time: int = 0
    cancelled: int = 0
    failed: int = 0
    expired: int = 0
    restarts: int = 0
    handovers: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    hits: int = 0
    parked_bytes_out: int = 0
    parked_bytes_in: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    parks: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    deadlines_missed: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)

    def copy(self) -> Counters:
        """Return the counts as they stand."""
        return replace(
            self,
            rejected=self.rejected.copy(),
            parks=self.parks.copy(),
            reasons=self.reasons.copy(),
            deadlines_missed=self.deadlines_missed.copy(),
            finish_reasons=self.finish_reasons.copy(),
        )

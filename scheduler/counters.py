"""Counts of what happened since the start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class Counters:
    """What happened since the start.

    `in_time` counts the finished requests that had their tokens as quickly as their level's target asks (goodput),
    `embedded` the texts that got their vector or their scores, which `finished` does not count, `rejected` refusals at
    submission by their reason, `parks` how often requests were parked by the way, `handovers` how often one left the
    lane that had computed its prompt for another one.
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
    embedded: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    parks: Counter[str] = field(default_factory=Counter)

    def copy(self) -> Counters:
        """Return the counts as they stand."""
        return replace(self, rejected=self.rejected.copy(), parks=self.parks.copy())

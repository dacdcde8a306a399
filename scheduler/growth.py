"""How many KV cells the running requests will come to need, predicted from the outputs seen before.

To reserve `max_tokens` for every request wastes most of it, for few outputs get so long; to reserve nothing ends in
parking. What counts is the largest sum of cells held at any one time: requests that end soon give their cells back
before the others have grown. So each request's end is predicted from the lengths of recent outputs, given that it
has come as far as it has, and the sum is taken at each of these ends. (The idea is that of "Past-Future Scheduler for
LLM Serving under SLA Guarantees", ASPLOS 2025.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llamalane.ids import Level
from llamalane.scheduler.quantiles import LevelQuantiles

WINDOW = 1000
"""How many recent outputs of a level are remembered."""
ENOUGH = 32
"""From so many outputs on, they are trusted."""
FIRST_GUESS = 256
"""The length in tokens that an output is thought to reach, until it is known better."""


@dataclass(slots=True)
class GrowingRow:
    """A request that holds KV cells and takes one more with each token.

    Attributes:
        level: its priority level.
        held: the cells that it holds; of a prompt that is being computed, all that it will fill.
        generated: the tokens generated so far.
        max_tokens: the most tokens that it may get, at least `generated`.
    """

    level: Level
    held: int
    generated: int
    max_tokens: int


class GrowthPredictor:
    """Learns how long outputs get, and predicts what running ones will need.

    An output's predicted length is the given `quantile` (more than 0, at most 1) of the recent lengths that exceed
    what it has already, those of its own level when enough were seen. Before that, and beyond the longest one seen,
    it is thought to get as much again, and `FIRST_GUESS` tokens at least. It is never more than its `max_tokens`.
    """

    def __init__(self, quantile: float = 0.8) -> None:
        if not 0 < quantile <= 1:
            raise ValueError(f"quantile must be more than 0 and at most 1; got {quantile}")
        self._quantile = quantile
        self._lengths: LevelQuantiles[int] = LevelQuantiles(WINDOW, ENOUGH)

    def observe(self, level: Level, length: int) -> None:
        """Learn from an output that has ended by itself or at its limit; one that was cancelled tells nothing."""
        self._lengths.add(level, length)

    def predict(self, row: GrowingRow) -> int:
        """Return how many tokens a request is likely to have in the end, from `row.generated` to `row.max_tokens`."""
        window = self._lengths.window(row.level)
        length = None if window is None else window.quantile_above(row.generated, self._quantile)
        if length is None:
            length = max(FIRST_GUESS, 2 * row.generated)
        return min(length, row.max_tokens)

    def peak_cells(self, rows: Iterable[GrowingRow]) -> int:
        """Return the most cells that `rows` will hold together at any time, if they end as predicted.

        Each takes one cell a step and gives all of them back at its end. The sum only falls when one ends, so it is
        largest just before: there, all with as much or more to come are left, and have grown alike. O(n log n).
        """
        by_end = sorted([(self.predict(row) - row.generated, row.held) for row in rows], reverse=True)
        peak = held = 0
        for count, (remaining, cells) in enumerate(by_end, start=1):
            held += cells
            peak = max(peak, held + count * remaining)
        return peak

    def fits(self, candidate: GrowingRow, rows: Iterable[GrowingRow], cells: int) -> bool:
        """Return whether `candidate` can join `rows` without their ever holding more than `cells` together."""
        return self.peak_cells([*rows, candidate]) <= cells

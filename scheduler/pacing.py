"""How many prompt tokens a step may compute, so that running outputs do not stall."""

from __future__ import annotations

from collections.abc import Iterable

from llamalane.streams import StepReport

SMALLEST_CHUNK = 8
"""A prompt advances by at least so many tokens in a step, whatever the target."""
FIRST_CHUNK = 64
"""So many prompt tokens are computed in a step before a lane's speed is known."""
TELLING = 64
"""A step with so many prompt tokens tells what one takes; one with fewer counts for less."""
_WEIGHT = 0.2
"""How much the newest step counts in a running mean."""


class StepTimeModel:
    """Learns a lane's speed from its steps: the time of its decode rows, and of each prompt token on top."""

    def __init__(self) -> None:
        self._decode_seconds: dict[int, float] = {}
        """Time of a step that computes no prompt, by its number of rows."""
        self._token_seconds: float | None = None
        """Additional time for each prompt token."""

    def observe(self, report: StepReport) -> None:
        """Learn from a step.

        What drafts add to it is not asked for: with more rows, or with a prompt, there are none. So a step with drafts
        tells something only as long as no other step had as many rows.
        """
        if report.times is not None and not (report.drafted_tokens and report.decode_rows in self._decode_seconds):
            seconds = report.times.decode + report.times.sample
            if report.prefill_tokens:
                self.observe_chunks([(seconds, report.decode_rows)], report.prefill_tokens)
            else:
                self.observe_decodes([seconds], report.decode_rows)

    def observe_decodes(self, times: Iterable[float], rows: int) -> None:
        """Learn from steps without prompts, one after the other: their seconds, and the rows that each of them had."""
        self._decode_seconds[rows] = _mean(self._decode_seconds.get(rows), times, _WEIGHT)

    def observe_chunks(self, steps: Iterable[tuple[float, int]], prefill_tokens: int) -> None:
        """Learn from steps with so many prompt tokens each: the seconds of each of them, and its decode rows."""
        # A step takes some time whatever it computes, so a few tokens say little about each.
        each = [max(seconds - self.decode_seconds(rows), 0.0) / prefill_tokens for seconds, rows in steps]
        self._token_seconds = _mean(self._token_seconds, each, _WEIGHT * min(1.0, prefill_tokens / TELLING))

    @property
    def token_seconds(self) -> float | None:
        """The time that a prompt token adds to a step, None while none was seen."""
        return self._token_seconds

    def decode_seconds(self, rows: int) -> float:
        """Return the expected time of a step with so many rows and no prompt.

        Between numbers of rows that were seen, on a straight line; beyond them, as if half of the nearest one's time
        went into reading the weights, whatever the rows.
        """
        seen = self._decode_seconds
        if rows == 0 or not seen:
            return 0.0
        if rows in seen:
            return seen[rows]
        below = max((count for count in seen if count < rows), default=None)
        above = min((count for count in seen if count > rows), default=None)
        if below is None or above is None:
            nearest = below or above or rows
            return seen[nearest] * (0.5 + 0.5 * rows / nearest)
        return seen[below] + (seen[above] - seen[below]) * (rows - below) / (above - below)

    def step_seconds(self, decode_rows: int, prefill_tokens: int) -> float:
        """Return the expected time of a step."""
        return self.decode_seconds(decode_rows) + prefill_tokens * (self._token_seconds or 0.0)

    def prefill_tokens(self, decode_rows: int, target: float, largest: int) -> int:
        """Return how many prompt tokens fit a step of `target` seconds beside `decode_rows`, at most `largest`."""
        smallest = min(SMALLEST_CHUNK, largest)
        if not self._token_seconds:
            return min(FIRST_CHUNK, largest)
        spare = target - self.decode_seconds(decode_rows)
        return max(smallest, min(largest, int(spare / self._token_seconds)))

    def rows_within(self, target: float, most: int) -> int:
        """Return how many decode rows fit a step of `target` seconds, at most `most`."""
        for rows in range(most, 0, -1):
            if self.decode_seconds(rows) <= target:
                return rows
        return 0


def _mean(mean: float | None, values: Iterable[float], weight: float) -> float:
    """Return a running mean after one value more or several; the first one of all is taken as it is."""
    for value in values:
        mean = value if mean is None else mean + weight * (value - mean)
    assert mean is not None, "no step was observed"
    return mean

"""How many prompt tokens a step may compute, so that running outputs do not stall."""

from __future__ import annotations

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
        """Learn from a step."""
        if report.times is None:
            return
        seconds = report.times.decode + report.times.sample
        rows = report.decode_rows
        if report.prefill_tokens == 0:
            self._decode_seconds[rows] = _mean(self._decode_seconds.get(rows), seconds)
        else:
            # A step takes some time whatever it computes, so a few tokens say little about each.
            rest = max(seconds - self.decode_seconds(rows), 0.0)
            weight = min(1.0, report.prefill_tokens / TELLING)
            self._token_seconds = _mean(self._token_seconds, rest / report.prefill_tokens, weight)

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
        return next((rows for rows in range(most, 0, -1) if self.decode_seconds(rows) <= target), 0)


def _mean(mean: float | None, value: float, weight: float = 1.0) -> float:
    return value if mean is None else mean + _WEIGHT * weight * (value - mean)

"""How many prompt tokens a step may compute, so that running outputs do not stall."""

from __future__ import annotations

from llamalane.streams import StepReport

SMALLEST_CHUNK = 16
"""A prompt advances by at least so many tokens in a step, whatever the target."""
FIRST_CHUNK = 64
"""So many prompt tokens are computed in a step before a lane's speed is known."""
_WEIGHT = 0.2
"""How much the newest step counts in a running mean."""


class StepTimeModel:
    """Learns a lane's speed from its steps: the time of its decode rows, and of each prompt token on top."""

    def __init__(self) -> None:
        self._decode_seconds: dict[int, float] = {0: 0.0}
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
            rest = max(seconds - self.decode_seconds(rows), 0.0)
            self._token_seconds = _mean(self._token_seconds, rest / report.prefill_tokens)

    def decode_seconds(self, rows: int) -> float:
        """Return the expected time of a step with so many rows and no prompt: that of the nearest number seen."""
        nearest = min(self._decode_seconds, key=lambda seen: abs(seen - rows))
        return self._decode_seconds[nearest]

    def prefill_tokens(self, decode_rows: int, target: float, largest: int) -> int:
        """Return how many prompt tokens fit a step of `target` seconds beside `decode_rows`, at most `largest`."""
        smallest = min(SMALLEST_CHUNK, largest)
        if not self._token_seconds:
            return min(FIRST_CHUNK, largest)
        spare = target - self.decode_seconds(decode_rows)
        return max(smallest, min(largest, int(spare / self._token_seconds)))


def _mean(mean: float | None, value: float) -> float:
    return value if mean is None else mean + _WEIGHT * (value - mean)

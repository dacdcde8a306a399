"""Estimates how long someone turned away should stay away."""

from __future__ import annotations

_WEIGHT = 0.1
_FIRST_GUESS = 1.0


class WaitEstimator:
    """Learns the interval at which places come free, from how long requests keep them."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._service: float | None = None

    def observe(self, seconds: float) -> None:
        """Take note that a request kept its place for so long."""
        self._service = seconds if self._service is None else self._service + _WEIGHT * (seconds - self._service)

    def retry_after(self) -> float:
        """Return the expected time in seconds until a request is admitted and leaves the queue."""
        return _FIRST_GUESS if self._service is None else self._service / self._places

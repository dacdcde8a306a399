"""How a request is parked: the cheapest way, by what each has cost so far."""

from __future__ import annotations

from llamalane.streams import Parked, Parking

_WEIGHT = 0.2
"""How much the newest measurement counts in a running mean."""
_SWAP_GUESS = 1e-5
"""Seconds for saving one cell, until it was measured."""
_COMPUTE_GUESS = 5e-3
"""Seconds for computing one prompt token, until it was measured."""


class ParkingCosts:
    """Chooses among pausing, swapping and recomputing.

    A paused request costs nothing but the cells that it goes on holding. Swapping copies them out and in again, and
    needs host memory: `swap_bytes` in all. Recomputing takes what the prompt and the output so far take to compute.
    `fixed` is the only way to be used where it can be; None leaves the choice to the costs.
    """

    def __init__(self, swap_bytes: int, fixed: Parking | None = None) -> None:
        self._swap_bytes = swap_bytes
        self._fixed = fixed
        self._save_seconds = _SWAP_GUESS
        self._cell_bytes = 0.0
        self.used_bytes = 0
        """Host memory that saved cells take."""

    def observe(self, parked: Parked) -> bool:
        """Learn from a swap, and count its bytes; returns whether they fit. Those that do not must be given up."""
        if parked.saved is None:
            return True
        size = len(parked.saved.data)
        self._cell_bytes = size / parked.computed
        self._save_seconds += _WEIGHT * (parked.seconds / parked.computed - self._save_seconds)
        if self.used_bytes + size > self._swap_bytes:
            return False
        self.used_bytes += size
        return True

    def forget(self, size: int) -> None:
        """Take note that `size` bytes of saved cells are gone."""
        self.used_bytes -= size

    def choose(self, cells: int, token_seconds: float | None, *, can_pause: bool) -> Parking:
        """Return how to park a request that fills `cells` cells, where a prompt token takes `token_seconds`.

        `can_pause` tells whether its cells can stay where they are.
        """
        if can_pause and self._fixed in (None, Parking.PAUSE):
            return Parking.PAUSE
        if not self._can_swap(cells) or self._fixed is Parking.RECOMPUTE:
            return Parking.RECOMPUTE
        if self._fixed is Parking.SWAP:
            return Parking.SWAP
        return Parking.SWAP if self._swap_loss(cells) < _compute_loss(cells, token_seconds) else Parking.RECOMPUTE

    def loss(self, cells: int, token_seconds: float | None, *, can_pause: bool) -> float:
        """Return the seconds that parking a request would cost, the cheapest way."""
        match self.choose(cells, token_seconds, can_pause=can_pause):
            case Parking.PAUSE:
                return 0.0
            case Parking.SWAP:
                return self._swap_loss(cells)
            case Parking.RECOMPUTE:
                return _compute_loss(cells, token_seconds)

    def _can_swap(self, cells: int) -> bool:
        return self.used_bytes + cells * self._cell_bytes <= self._swap_bytes and self._swap_bytes > 0

    def _swap_loss(self, cells: int) -> float:
        return 2 * cells * self._save_seconds  # out and in again


def _compute_loss(cells: int, token_seconds: float | None) -> float:
    return cells * (token_seconds or _COMPUTE_GUESS)

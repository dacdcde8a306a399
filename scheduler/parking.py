"""How a request is parked: the cheapest way, by what each has cost so far."""

from __future__ import annotations

import math

from llamalane.kvcache import HostStore
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
    needs host memory: `swap_bytes` in all, which `store` shares out. Recomputing takes what the prompt and the output
    so far take to compute. `fixed` is the only way to be used where it can be; None leaves the choice to the costs.
    `can_swap` tells whether the lanes can save cells and put them back.
    """

    def __init__(self, swap_bytes: int, fixed: Parking | None = None, *, can_swap: bool = True) -> None:
        self.store = HostStore(swap_bytes if can_swap else 0)
        self._swap_bytes = swap_bytes if can_swap else 0
        self._fixed = fixed
        self._save_seconds = _SWAP_GUESS
        self._cell_bytes = 0.0

    def observe(self, parked: Parked) -> bool:
        """Learn from a swap, and count its bytes; returns whether they fit. Those that do not must be given up."""
        if parked.saved is None:
            return True
        size = len(parked.saved.data)
        self.observe_saving(size, parked.computed, parked.seconds)
        return self.store.reserve(size)

    def observe_saving(self, size: int, cells: int, seconds: float) -> None:
        """Learn from the saving of so many cells, which took `size` bytes."""
        self._cell_bytes = size / cells
        self._save_seconds += _WEIGHT * (seconds / cells - self._save_seconds)

    def forget(self, size: int) -> None:
        """Take note that `size` bytes of a parked request's saved cells are gone."""
        self.store.release(size)

    def size(self, cells: int) -> int:
        """Return how many bytes saved cells are likely to take, 0 until that is known."""
        return round(cells * self._cell_bytes)

    def choose(
        self, cells: int, token_seconds: float | None, *, can_pause: bool, most_seconds: float = math.inf
    ) -> Parking:
        """Return how to park a request that fills `cells` cells, where a prompt token takes `token_seconds`.

        `can_pause` tells whether its cells can stay where they are. Unless it is the only way, it is not swapped when
        saving its cells would take more than `most_seconds`, for which others would have to wait.
        """
        if can_pause and self._fixed in (None, Parking.PAUSE):
            return Parking.PAUSE
        if not self.fits(cells) or self._fixed is Parking.RECOMPUTE:
            return Parking.RECOMPUTE
        if self._fixed is Parking.SWAP:
            return Parking.SWAP
        swapping = self.swap_seconds(cells)
        quick = swapping < self.compute_seconds(cells, token_seconds) and swapping / 2 <= most_seconds
        return Parking.SWAP if quick else Parking.RECOMPUTE

    def loss(
        self, cells: int, token_seconds: float | None, *, can_pause: bool, most_seconds: float = math.inf
    ) -> float:
        """Return the seconds that parking a request would cost, the way that `choose` says."""
        match self.choose(cells, token_seconds, can_pause=can_pause, most_seconds=most_seconds):
            case Parking.PAUSE:
                return 0.0
            case Parking.SWAP:
                return self.swap_seconds(cells)
            case Parking.RECOMPUTE:
                return self.compute_seconds(cells, token_seconds)

    def swap_seconds(self, cells: int) -> float:
        """Return how long saving so many cells and putting them back is likely to take."""
        return 2 * cells * self._save_seconds

    @staticmethod
    def compute_seconds(tokens: int, token_seconds: float | None) -> float:
        """Return how long computing so many tokens is likely to take."""
        return tokens * (token_seconds or _COMPUTE_GUESS)

    def fits(self, cells: int) -> bool:
        """Return whether there is host memory for so many cells, as far as it is known how large they are."""
        return self._swap_bytes > 0 and self.store.reserved_bytes + self.size(cells) <= self._swap_bytes

"""Whose the cells of a region are, for whoever wants to look at them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llamalane.ids import SequenceId


class CellUse(enum.Enum):
    """What cells are held for."""

    RUNNING = "running"
    """Running requests may use them."""
    PAUSED = "paused"
    """Paused requests hold them, and no running one does."""
    KEPT = "kept"
    """Finished requests have left them, and nobody uses them."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Cells of a region, each in one holding only.

    `sequence` alone holds them for such a use; None for those that several hold together.
    """

    use: CellUse
    cells: int
    sequence: SequenceId | None = None


def holdings_of(use: CellUse, own: Mapping[SequenceId, int], total: int) -> Iterator[Holding]:
    """Yield what each sequence holds alone of `total` cells, by their ids, then what they hold together."""
    for sequence, cells in sorted(own.items()):
        if cells:
            yield Holding(use, cells, sequence)
    together = total - sum(own.values())
    if together:
        yield Holding(use, together)

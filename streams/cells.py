"""What a lane does with the cells of its sequences, beside computing steps."""

from __future__ import annotations

import time
from typing import Protocol

from llamalane.ids import SequenceId
from llamalane.streams.steps import Merge, Move, Restore, Restored, SavedCells, Stow, Stowed


class Cells(Protocol):
    """What is asked of the lane's context; `llamalane.streams.llama.Context` tells what each means."""

    def remove(self, sequence: SequenceId, start: int = 0) -> bool:  # noqa: D102
        ...

    def length(self, sequence: SequenceId) -> int:  # noqa: D102
        ...

    def copy(self, source: SequenceId, target: SequenceId, length: int) -> bool:  # noqa: D102
        ...

    def merge(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:  # noqa: D102
        ...

    def save(self, sequence: SequenceId) -> bytearray:  # noqa: D102
        ...

    def restore(self, sequence: SequenceId, data: bytearray) -> bool:  # noqa: D102
        ...


class MovableCells(Cells, Protocol):
    """What is asked of a context whose sequences can go on when they are full."""

    def shift(self, sequence: SequenceId, keep: int, drop: int) -> bool:  # noqa: D102
        ...


def trim(cells: Cells, sequence: SequenceId, keep: int) -> int:
    """Remove all but the first `keep` cells of a sequence, or all where that cannot be; returns how many are left."""
    if cells.remove(sequence, keep):
        return keep
    cells.remove(sequence)
    return 0


def copy(cells: Cells, source: SequenceId, target: SequenceId, most: int) -> int:
    """Let an empty sequence hold what another one holds, `most` cells at most; returns how many it got."""
    length = min(cells.length(source), most)
    return length if length and cells.copy(source, target, length) else 0


def move(cells: Cells, change: Move) -> None:
    """Let an empty sequence hold what another one does, in its place."""
    cells.remove(change.to)
    copy(cells, change.sequence, change.to, cells.length(change.sequence))
    cells.remove(change.sequence)


def merge(cells: Cells, change: Merge) -> None:
    """Let a sequence share the cells of another one, if both are as long as they should be."""
    if min(cells.length(change.sequence), cells.length(change.source)) >= change.end:
        cells.merge(change.source, change.sequence, change.start, change.end)


def stow(cells: Cells, change: Stow) -> Stowed:
    """Save a sequence, and remove what it is not to keep."""
    begin = time.monotonic()
    length = cells.length(change.sequence)
    saved = SavedCells(cells.save(change.sequence), length) if length else None
    trim(cells, change.sequence, change.keep)
    return Stowed(change.ticket, saved, time.monotonic() - begin)


def restore(cells: Cells, change: Restore) -> Restored:
    """Put saved cells back into a sequence."""
    data = change.read()
    done = data is not None and cells.restore(change.sequence, data)
    done = done and trim(cells, change.sequence, change.length) == change.length
    return Restored(change.ticket, done, len(data or ()))

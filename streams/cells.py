"""What a lane does with the cells of its sequences, beside computing steps."""

from __future__ import annotations

from typing import Protocol

from llamalane.ids import SequenceId
from llamalane.streams.parts import Parts, Stopwatch
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

    def saving(self, sequence: SequenceId) -> Parts[bytearray]:  # noqa: D102
        ...

    def restoring(self, sequence: SequenceId, data: bytearray) -> Parts[bool]:  # noqa: D102
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


def save(cells: Cells, sequence: SequenceId, length: int) -> Parts[tuple[SavedCells | None, float]]:
    """Save a sequence of so many tokens; returns what was saved, and how many seconds that took, pauses left out."""
    watch = Stopwatch()
    data = (yield from watch.timing(cells.saving(sequence))) if length else None
    return None if data is None else SavedCells(data, length), watch.seconds


def stow(cells: Cells, change: Stow) -> Parts[Stowed]:
    """Save a sequence, and remove what it is not to keep."""
    saved, seconds = yield from save(cells, change.sequence, cells.length(change.sequence))
    trim(cells, change.sequence, change.keep)
    return Stowed(change.ticket, saved, seconds)


def restore(cells: Cells, change: Restore) -> Parts[Restored]:
    """Put saved cells back into a sequence."""
    data = change.read()
    done = data is not None and (yield from cells.restoring(change.sequence, data))
    done = done and trim(cells, change.sequence, change.length) == change.length
    return Restored(change.ticket, done, len(data or ()))

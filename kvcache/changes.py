"""What the books of a region ask of its context, in the order in which it has to be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llamalane.ids import SequenceId


@dataclass(frozen=True, slots=True)
class Evicted:
    """The cells of `sequence`, which no request uses, are given up: all but the first `keep`.

    They hold `tokens`, under `scope`: worth a thought whether they should go to host memory before.
    """

    sequence: SequenceId
    scope: str
    tokens: Sequence[int]
    keep: int = 0


@dataclass(frozen=True, slots=True)
class Moved:
    """What `sequence` holds is held by `to` from now on, which held nothing."""

    sequence: SequenceId
    to: SequenceId


@dataclass(frozen=True, slots=True)
class Merged:
    """`sequence` holds the same tokens as `source` from `start` to `end`, in cells of its own: they can share one's."""

    sequence: SequenceId
    source: SequenceId
    start: int
    end: int


CellChange = Evicted | Moved | Merged


@dataclass(frozen=True, slots=True)
class Source:
    """The first `length` tokens of a prompt are held by `sequence`, or will be: it may be computing them."""

    sequence: SequenceId
    length: int


@dataclass(frozen=True, slots=True)
class TakenPlace:
    """A sequence to run on.

    Attributes:
        sequence: whose it is.
        cells: how many are reserved, those that it shares included.
        cached: how many of the prompt's first tokens it holds already.
        share: where more of them can be had from, None for nowhere.
        changes: what has to be done before.
    """

    sequence: SequenceId
    cells: int
    cached: int
    share: Source | None = None
    changes: tuple[CellChange, ...] = ()


@dataclass(frozen=True, slots=True)
class RegionStatistics:
    """A region at one moment."""

    cells: int
    """All cells of the region."""
    reserved: int
    """Cells that running requests may use."""
    paused: int
    """Cells that paused requests hold, and no running one does."""
    kept: int
    """Cells that finished requests have left for those that continue them, and nobody uses."""
    sequences: int
    """All sequences that can run."""
    free: int
    """Those of them that can be taken."""
    evictions: int = 0
    """How often kept cells were given up so far."""

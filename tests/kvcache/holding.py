"""What has to hold of whom a region says its cells belong to."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from llamalane.ids import SequenceId
from llamalane.kvcache import CellUse, Region, SharedRegion


def check_holdings(
    region: Region | SharedRegion, *, running: AbstractSet[SequenceId], paused: AbstractSet[SequenceId]
) -> None:
    """Check that each cell is in one holding, by the right sequence, and that the sums are those of the statistics."""
    holdings, statistics = region.holdings(), region.statistics()
    totals = dict.fromkeys(CellUse, 0)
    for one in holdings:
        assert one.cells > 0
        totals[one.use] += one.cells
    assert totals == {
        CellUse.RUNNING: statistics.reserved,
        CellUse.PAUSED: statistics.paused,
        CellUse.KEPT: statistics.kept,
    }
    named = [(one.use, one.sequence) for one in holdings]
    assert len(set(named)) == len(named)
    for use, sequence in named:
        if sequence is not None:
            assert (sequence in running) == (use is CellUse.RUNNING)
            assert (sequence in paused) == (use is CellUse.PAUSED)

"""What the books of both layouts tell of the plan that they go by."""

from __future__ import annotations

from dataclasses import dataclass

from llamalane.kvcache.budget import Layout, RegionPlan


@dataclass(slots=True)
class PlannedRegion:
    """A region whose cells and sequences `plan` tells."""

    plan: RegionPlan

    @property
    def places(self) -> int:
        """How many sequences can run at once."""
        return self.plan.places

    @property
    def limit(self) -> int:
        """The most cells that one sequence can hold."""
        return self.plan.limit

    @property
    def cells(self) -> int:
        """All cells."""
        return self.plan.cells

    @property
    def sequences(self) -> int:
        """How many sequences can run or be paused."""
        return self.plan.sequences

    @property
    def saves_in_parts(self) -> bool:
        """Whether a sequence is saved in parts, so that others can be computed in between."""
        return self.plan.layout is Layout.PAGED and self.plan.keepers > 0

    @property
    def form(self) -> str:
        """What saved cells look like: only regions of one model and one form can hold what another one held.

        llama.cpp lays partitioned cells out by their number of parts. In one cache they are saved in parts, which only
        a lane with keepers can put together.
        """
        if self.plan.layout is Layout.PARTITIONED:
            return str(self.plan.sequences)
        return "0" if self.saves_in_parts else "whole"

"""What the books of both layouts tell of the plan that they go by."""

from __future__ import annotations

from dataclasses import dataclass

from llamalane.kvcache.budget import RegionPlan


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

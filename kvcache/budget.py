"""Divides a device's KV budget among its lanes."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from llamalane.errors import ConfigError
from llamalane.ids import MAX_SEQUENCES

CELLS_MULTIPLE = 256
"""llama.cpp allocates KV cells in multiples of this; a region that is not one would be rounded up behind our back."""


class Layout(enum.Enum):
    """How the sequences of a lane share its region."""

    PAGED = "paged"
    """Each takes the cells that it needs."""
    PARTITIONED = "partitioned"
    """Each has an equal part for itself."""


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """How large one lane's region is.

    Attributes:
        cells: KV cells, one for each token, a multiple of 256; partitioned, each sequence's part is one.
        places: how many sequences can run at once.
        limit: the most tokens that one sequence can hold, prompt and output together.
        sequences: how many sequences can hold cells, `places` at least; those that do not run are paused or kept.
        layout: how they share the cells.
    """

    cells: int
    places: int
    limit: int
    sequences: int
    layout: Layout = Layout.PAGED


def divide(
    budget: int, places: Sequence[int], train_context: int, *, layout: Layout = Layout.PAGED, spare: int | None = None
) -> list[RegionPlan]:
    """Divide `budget` tokens among lanes in proportion to their `places`.

    `spare` is how many sequences of each lane can hold cells beyond those that run. Paged, they cost nothing, and by
    default there are as many as places; partitioned, each costs a part of the region, and by default there are none.
    A sequence's limit is the region, or its part of it, and no more than `train_context`, the length the model was
    trained for (0 if unknown). Raises `ConfigError` when a lane would get too few cells.
    """
    total = sum(places)
    plans = []
    for count in places:
        sequences = min(count + _spare(layout, count, spare), MAX_SEQUENCES)
        parts = sequences if layout is Layout.PARTITIONED else 1
        part = budget * count // total // parts // CELLS_MULTIPLE * CELLS_MULTIPLE
        if part == 0:
            each = f"every lane needs at least {CELLS_MULTIPLE}"
            if layout is Layout.PARTITIONED:
                each = f"each of a lane's sequences, {sequences} here, needs {CELLS_MULTIPLE} for itself"
            raise ConfigError(
                f"a KV budget of {budget} tokens is too small for {total} places on {len(places)} lanes: {each}"
            )
        if part < 2 * count and layout is Layout.PAGED:
            raise ConfigError(f"{part} KV cells are too few for {count} places: a sequence needs at least 2")
        limit = min(part, train_context) if train_context else part
        plans.append(RegionPlan(part * parts, count, limit, sequences, layout))
    return plans


def _spare(layout: Layout, places: int, wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    return places if layout is Layout.PAGED else 0

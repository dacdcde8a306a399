"""Divides a device's KV budget among its lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llamalane.errors import ConfigError

CELLS_MULTIPLE = 256
"""llama.cpp allocates KV cells in multiples of this; a region that is not one would be rounded up behind our back."""


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """How large one lane's region is.

    Attributes:
        cells: KV cells, one for each token, a multiple of 256.
        places: how many sequences share them.
        limit: the most tokens that one sequence can hold, prompt and output together.
    """

    cells: int
    places: int
    limit: int


def divide(budget: int, places: Sequence[int], train_context: int) -> list[RegionPlan]:
    """Divide `budget` tokens among lanes in proportion to their `places`.

    A sequence's limit is its equal part of the region, and no more than `train_context`, the length the model was
    trained for (0 if unknown). Raises `ConfigError` when a lane would get fewer cells than a multiple of 256.
    """
    total = sum(places)
    plans = []
    for count in places:
        cells = budget * count // total // CELLS_MULTIPLE * CELLS_MULTIPLE
        if cells == 0:
            raise ConfigError(
                f"a KV budget of {budget} tokens is too small for {total} places on {len(places)} lanes: "
                f"every lane needs at least {CELLS_MULTIPLE}"
            )
        limit = cells // count
        if limit < 2:
            raise ConfigError(f"{cells} KV cells are too few for {count} places: a sequence needs at least 2")
        plans.append(RegionPlan(cells, count, min(limit, train_context) if train_context else limit))
    return plans

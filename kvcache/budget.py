"""Reads a device's KV budget, and divides it among its lanes."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

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
        keepers: how many sequences more can hold cells that others began to fill, but never run.
    """

    cells: int
    places: int
    limit: int
    sequences: int
    layout: Layout = Layout.PAGED
    keepers: int = 0


MOST_TOKENS = 2_000_000_000
"""The largest budget: llama.cpp counts cells in 32 bits."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """A budget as so many bytes."""

    count: int


@dataclass(frozen=True, slots=True)
class Share:
    """A budget as a part of the memory that is free; more than 0, at most 1."""

    part: float


UNITS: Mapping[str, int] = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
"""Bytes in each unit; upper and lower case are the same."""
_UNITS = {name.lower(): factor for name, factor in UNITS.items()}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%|[A-Za-z]+)\s*", re.ASCII)


def parse_amount(text: str) -> Bytes | Share:
    """Read `4GiB`, `512 MB` or `50%`; raises `ConfigError` for all else."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is neither tokens, such as 16384, nor bytes, such as 4GiB, nor a share, as 50%")
    number, unit = Fraction(match[1]), match[2]
    if unit == "%":
        if not 0 < number <= 100:
            raise ConfigError(f"a share is more than 0% and at most 100%; got {text.strip()}")
        return Share(float(number / 100))
    factor = _UNITS.get(unit.lower())
    if factor is None:
        raise ConfigError(f"the unit {unit!r} is none of {', '.join(UNITS)} and %")
    return Bytes(int(number * factor))


def divide(
    budget: int,
    places: Sequence[int],
    train_context: int,
    *,
    layout: Layout | Sequence[Layout] = Layout.PAGED,
    spare: int | None = None,
    weights: Sequence[float] | None = None,
) -> list[RegionPlan]:
    """Divide `budget` tokens among lanes in proportion to their `weights`, by default their `places`.

    `layout` is one for all lanes, or one for each. `spare` is how many sequences of each lane can hold cells beyond
    those that run. Paged, they cost nothing, and by default there are as many as places; partitioned, each costs a part
    of the region, and by default there are none.
    A sequence's limit is the region, or its part of it, and no more than `train_context`, the length the model was
    trained for (0 if unknown). Raises `ConfigError` when a lane would get too few cells.
    """
    total = sum(places)
    plans = []
    for count, share, how in zip(places, _shares(places, weights), _layouts(layout, places), strict=True):
        sequences = count_sequences(count, how, spare)
        parts = sequences if how is Layout.PARTITIONED else 1
        part = int(budget * share) // parts // CELLS_MULTIPLE * CELLS_MULTIPLE
        if part == 0:
            each = f"every lane needs at least {CELLS_MULTIPLE}"
            if how is Layout.PARTITIONED:
                each = f"each of a lane's sequences, {sequences} here, needs {CELLS_MULTIPLE} for itself"
            raise ConfigError(
                f"a KV budget of {budget} tokens is too small for {total} places on {len(places)} lanes: {each}"
            )
        if part < _least_cells(count, how):
            raise ConfigError(f"{part} KV cells are too few for {count} places: a sequence needs at least 2")
        limit = min(part, train_context) if train_context else part
        plans.append(RegionPlan(part * parts, count, limit, sequences, how))
    return plans


def least_budget(
    places: Sequence[int],
    *,
    layout: Layout | Sequence[Layout] = Layout.PAGED,
    spare: int | None = None,
    weights: Sequence[float] | None = None,
) -> int:
    """Return the smallest budget in tokens that `divide` can divide."""
    least = 0
    for count, share, how in zip(places, _shares(places, weights), _layouts(layout, places), strict=True):
        parts = count_sequences(count, how, spare) if how is Layout.PARTITIONED else 1
        part = math.ceil(_least_cells(count, how) / CELLS_MULTIPLE) * CELLS_MULTIPLE
        least = max(least, math.ceil(parts * part / share))
    return least


def count_sequences(places: int, layout: Layout, spare: int | None) -> int:
    """Return how many sequences of a lane can hold cells: those that run, and those to spare as `divide` has them."""
    if spare is None:
        spare = places if layout is Layout.PAGED else 0
    return min(places + spare, MAX_SEQUENCES)


def _layouts(layout: Layout | Sequence[Layout], places: Sequence[int]) -> Sequence[Layout]:
    return [layout] * len(places) if isinstance(layout, Layout) else layout


def _shares(places: Sequence[int], weights: Sequence[float] | None) -> list[Fraction]:
    exact = [Fraction(weight) for weight in weights or places]
    return [weight / sum(exact) for weight in exact]


def _least_cells(places: int, layout: Layout) -> int:
    """Return how many cells a region needs at least, or each part of it, where sequences have parts."""
    return 2 * places if layout is Layout.PAGED else 1

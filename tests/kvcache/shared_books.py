"""Short words for what the tests of a shared region do again and again."""

from __future__ import annotations

from collections.abc import Sequence

from llamalane.ids import SequenceId
from llamalane.kvcache import Evicted, RegionPlan, SharedRegion, TakenPlace


def region(
    sequences: int = 3,
    *,
    cells: int = 100,
    limit: int = 50,
    keepers: int = 0,
    most_kept: int | None = None,
    worthwhile: int = 1,
) -> SharedRegion:
    """Return the books of a region where, unless told otherwise, each token is worth waiting for and merging."""
    plan = RegionPlan(cells=cells, places=sequences, limit=limit, sequences=sequences, keepers=keepers)
    return SharedRegion(plan, most_kept, worthwhile)


def run(books: SharedRegion, tokens: Sequence[int], cells: int | None = None, scope: str = "") -> TakenPlace:
    """Give a prompt a place, with cells for it and no more unless they are named."""
    return books.take(tokens, len(tokens) if cells is None else cells, scope)


def leave(books: SharedRegion, *histories: Sequence[int], scope: str = "") -> list[SequenceId]:
    """Let one request after the other come and go, and return which sequence each had."""
    sequences = []
    for history in histories:
        sequences.append(run(books, history, scope=scope).sequence)
        books.give_back(sequences[-1], history)
    return sequences


def gone(sequence: int, tokens: Sequence[int], keep: int = 0, scope: str = "") -> Evicted:
    return Evicted(SequenceId(sequence), scope, tokens, keep)


def numbers(books: SharedRegion) -> tuple[int, int, int]:
    """Return how many cells are reserved, paused and kept, after a look whether that adds up."""
    books.check()
    statistics = books.statistics()
    assert statistics.reserved + statistics.paused + books.room == statistics.cells
    return statistics.reserved, statistics.paused, statistics.kept

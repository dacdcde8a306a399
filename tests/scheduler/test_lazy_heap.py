"""The heap whose items move and leave."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from llamalane.scheduler.lazy_heap import LazyHeap

ITEMS = "abcdefgh"

operations = st.lists(st.tuples(st.sampled_from(ITEMS), st.none() | st.integers(0, 20)), max_size=300)
"""Who is put where, or leaves (None)."""


@given(operations)
def test_the_first_is_always_the_smallest(operations: list[tuple[str, int | None]]) -> None:
    heap: LazyHeap[str, tuple[int, str]] = LazyHeap()
    plain: dict[str, tuple[int, str]] = {}
    for item, rank in operations:
        if rank is None:
            heap.discard(item)
            plain.pop(item, None)
        else:
            heap.put(item, (rank, item))
            plain[item] = (rank, item)
        assert heap.first() == min(plain, key=plain.__getitem__, default=None)
        assert (len(heap), set(heap)) == (len(plain), set(plain))
        assert [heap.rank(one) for one in ITEMS] == [plain.get(one) for one in ITEMS]
        assert [one in heap for one in ITEMS] == [one in plain for one in ITEMS]
        assert heap.in_order() == sorted(plain, key=plain.__getitem__)


def test_what_was_moved_or_taken_out_takes_no_memory() -> None:
    heap: LazyHeap[int, tuple[int]] = LazyHeap()
    for number in range(1000):
        heap.put(number, (number,))
    for number in range(1000):
        heap.put(0, (-number,))
    for number in range(1, 1000):
        heap.discard(number)
    assert heap.first() == 0
    assert len(heap._entries) < 100, "the dead outnumber the living"


@dataclass(frozen=True)
class Counted:
    """A number that counts how often it is compared."""

    value: float
    comparisons: list[int]

    def __lt__(self, other: Counted) -> bool:
        self.comparisons[0] += 1
        return self.value < other.value


def test_a_change_costs_the_logarithm_of_the_size() -> None:
    heap: LazyHeap[int, tuple[Counted, int]] = LazyHeap()
    chance, comparisons, size = random.Random(1), [0], 10_000
    for item in range(size):
        heap.put(item, (Counted(chance.random(), comparisons), item))
    comparisons[0] = 0
    for _ in range(size):
        first = heap.first()
        assert first is not None
        heap.put(first, (Counted(1 + chance.random(), comparisons), first))
    assert comparisons[0] < 4 * size * math.log2(size)

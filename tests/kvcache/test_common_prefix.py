from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from llamalane.kvcache import common_prefix

TOKENS = st.lists(st.integers(0, 2), max_size=40)
KINDS = st.sampled_from([list, tuple])


def naive(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


@settings(deadline=None)
@given(TOKENS, TOKENS, TOKENS, KINDS, KINDS)
def test_counts_the_first_elements_that_are_equal(
    shared: list[int],
    left: list[int],
    right: list[int],
    left_kind: Callable[[list[int]], Sequence[int]],
    right_kind: Callable[[list[int]], Sequence[int]],
) -> None:
    one, other = left_kind(shared + left), right_kind(shared + right)
    assert common_prefix(one, other) == naive(one, other)
    assert common_prefix(other, one) == naive(one, other)


def test_long_sequences_that_differ_in_one_place() -> None:
    left = list(range(10_000))
    for place in (0, 1, 4_999, 5_000, 9_998, 9_999):
        right = left.copy()
        right[place] = -1
        assert common_prefix(left, right) == place

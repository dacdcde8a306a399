"""Prompts that begin as another sequence does, where each has a part of its own: the beginning is copied."""

from __future__ import annotations

import pytest

from llamalane.ids import SequenceId
from llamalane.kvcache import Evicted, Layout, Region, RegionPlan, Source

LIMIT = 20
LEAST = 3
"""So many tokens more than a place keeps make a copy worth its while."""


def region(
    sequences: int = 3,
    *,
    layout: Layout = Layout.PARTITIONED,
    can_roll_back: bool = True,
    least: int = LEAST,
    compact: bool = False,
) -> Region:
    plan = RegionPlan(cells=LIMIT * sequences, places=sequences, limit=LIMIT, sequences=sequences, layout=layout)
    return Region(plan, can_roll_back, least, compact)


def leave(books: Region, *histories: list[int]) -> list[SequenceId]:
    """Let one sequence after the other end, each on a place of its own, and return their places."""
    taken = [books.take([0], LIMIT, "").sequence for _ in histories]
    for sequence, history in zip(taken, histories, strict=True):
        books.give_back(sequence, history)
    return taken


def test_a_conversation_that_only_begins_alike_is_copied_and_stays() -> None:
    books = region()
    kept, _ = leave(books, [1, 2, 3, 4, 5, 6, 7, 8], [9])
    taken = books.take([1, 2, 3, 99], 10, "")
    assert (taken.sequence, taken.cached, taken.share, taken.changes) == (2, 0, Source(kept, 3), ())
    assert books.cached([1, 2, 3, 4, 5, 6, 7, 8, 9], "") == 8


def test_a_prompt_that_runs_is_copied_but_for_its_last_token() -> None:
    books = region()
    running = books.take([1, 2, 3, 4, 5], 10, "").sequence
    assert books.take([1, 2, 3, 4, 5, 6], 10, "").share == Source(running, 4)


def test_a_paused_one_is_copied_as_far_as_it_got() -> None:
    books = region()
    paused = books.take([1, 2, 3, 4, 5, 6], 10, "").sequence
    books.pause(paused)
    assert books.cached([1, 2, 3, 4, 5, 6, 7], "") == 5
    books.settle(paused, 4)
    assert books.take([1, 2, 3, 4, 5, 6, 7], 10, "").share == Source(paused, 4)


def test_what_was_restored_is_copied_by_others() -> None:
    books = region()
    restored = books.take([1, 2, 3, 4, 5], 10, "", restored=True).sequence
    assert books.take([1, 2, 3, 4, 9], 10, "").share == Source(restored, 4)


def test_nothing_is_copied_for_one_that_is_restored() -> None:
    books = region()
    leave(books, [1, 2, 3, 4, 5, 6])
    taken = books.take([1, 2, 3, 4, 5], 10, "", restored=True)
    assert (taken.cached, taken.share) == (0, None)


def test_a_copy_must_give_enough_tokens_more_than_the_place_keeps() -> None:
    books = region()
    place = books.take([0], LIMIT, "").sequence
    running = books.take([1, 2, 3, 4, 5, 6, 7], 10, "").sequence
    books.give_back(place, [1, 2, 3])
    less = [1, 2, 3, 4, 5, 9]
    assert books.cached(less, "") == 3
    taken = books.take(less, 10, "")
    assert (taken.sequence, taken.cached, taken.share) == (place, 3, None)
    books.give_back(place, [1, 2, 3])
    enough = [1, 2, 3, 4, 5, 6, 9]
    assert books.cached(enough, "") == 6
    taken = books.take(enough, 10, "")
    assert (taken.cached, taken.share) == (0, Source(running, 6))


def test_the_least_worth_a_copy_counts_from_nothing_as_well() -> None:
    books = region()
    running = books.take([1, 2, 3, 4, 5, 6, 7], 10, "").sequence
    assert books.take([1, 2, 9, 9], 10, "").share is None
    assert books.take([1, 2, 3, 9], 10, "").share == Source(running, 3)


def test_no_more_is_copied_than_was_reserved() -> None:
    books = region()
    running = books.take([1, 2, 3, 4, 5, 6, 7], 10, "").sequence
    assert books.take([1, 2, 3, 4, 5, 6, 7], 4, "").share == Source(running, 4)
    assert books.take([1, 2, 3, 4, 5, 6, 7], 2, "").share is None


def test_of_two_that_hold_as_much_the_one_that_need_not_be_waited_for_is_copied() -> None:
    books = region(4)
    first = books.take([1, 2, 3, 4, 9], 10, "").sequence
    kept = books.take([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 12, "").sequence
    books.take([1, 2, 3, 4, 8], 10, "")
    books.give_back(kept, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    assert first < kept
    assert books.take([1, 2, 3, 4, 7], 10, "").share == Source(kept, 4)


def test_the_longest_is_copied_even_if_it_must_be_waited_for() -> None:
    books = region()
    leave(books, [1, 2, 3, 9, 9, 9, 9])
    running = books.take([1, 2, 3, 4, 5, 6], 10, "").sequence
    assert books.take([1, 2, 3, 4, 5, 8], 10, "").share == Source(running, 5)


def test_a_copy_goes_where_nothing_is_lost_by_it() -> None:
    books = region()
    running = books.take([1, 2, 3, 4, 5, 6, 7, 8], 10, "").sequence
    begun, empty = leave(books, [1, 2, 3, 9], [])
    taken = books.take([1, 2, 3, 4, 5, 6, 7, 8], 10, "")
    assert (taken.sequence, taken.share, taken.changes) == (empty, Source(running, 7), ())
    assert books.cached([1, 2, 3, 9, 9], "") == 4
    assert begun != empty


def test_a_place_that_keeps_a_part_of_what_is_copied_loses_nothing_either() -> None:
    books = region()
    running = books.take([1, 2, 3, 4, 5, 6, 7, 8], 10, "").sequence
    stranger, begun = leave(books, [7, 7, 7], [1, 2, 3])
    taken = books.take([1, 2, 3, 4, 5, 6, 7, 8], 10, "")
    assert (taken.sequence, taken.cached, taken.share) == (begun, 0, Source(running, 7))
    assert taken.changes == (Evicted(begun, "", [1, 2, 3], keep=0),)
    assert books.cached([7, 7, 7, 7], "") == 3
    assert stranger < begun


def test_else_a_copy_goes_to_the_place_that_was_free_longest() -> None:
    books = region()
    running = books.take([1, 2, 3, 4, 5, 6, 7, 8], 10, "").sequence
    oldest, _ = leave(books, [7, 7, 7], [1, 2, 3, 9])
    taken = books.take([1, 2, 3, 4, 5, 6, 7, 8], 10, "")
    assert (taken.sequence, taken.share) == (oldest, Source(running, 7))
    assert taken.changes == (Evicted(oldest, "", [7, 7, 7], keep=0),)


def test_a_copy_never_goes_to_where_it_comes_from() -> None:
    books = region(2)
    source, other = leave(books, [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 9])
    books.give_back(books.take([1, 9, 9], 3, "").sequence, [1, 9])
    taken = books.take([1, 2, 3, 4, 99], 10, "")
    assert (taken.sequence, taken.share) == (other, Source(source, 4))


def test_the_only_place_left_is_used_as_it_is() -> None:
    books = region(1)
    (place,) = leave(books, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert books.cached([1, 2, 3, 99], "") == 3
    taken = books.take([1, 2, 3, 99], 10, "")
    assert (taken.sequence, taken.cached, taken.share) == (place, 3, None)
    assert taken.changes == (Evicted(place, "", [1, 2, 3, 4, 5, 6, 7, 8, 9], keep=3),)


def test_a_place_is_not_copied_onto_itself_however_cheap_a_copy_is() -> None:
    books = region(1, least=0)
    (place,) = leave(books, [1, 2, 3])
    taken = books.take([1, 2, 3, 4], 10, "")
    assert (taken.sequence, taken.cached, taken.share, taken.changes) == (place, 3, None, ())


@pytest.mark.parametrize(
    "books",
    [region(layout=Layout.PAGED), region(can_roll_back=False)],
    ids=["paged", "without roll back"],
)
def test_elsewhere_nothing_is_copied(books: Region) -> None:
    books.take([1, 2, 3, 4, 5, 6], 10, "")
    assert books.cached([1, 2, 3, 4, 5, 6], "") == 0
    assert books.take([1, 2, 3, 4, 5, 6], 10, "").share is None


def test_nothing_is_copied_from_another_scope() -> None:
    books = region()
    books.take([1, 2, 3, 4, 5, 6], 10, "alice")
    assert books.cached([1, 2, 3, 4, 5, 6], "bob") == 0
    assert books.take([1, 2, 3, 4, 5, 6], 10, "bob").share is None


def test_a_place_that_was_left_is_copied_by_what_it_keeps() -> None:
    books = region()
    place = books.take([1, 2, 3, 4, 5, 6], 10, "").sequence
    books.give_back(place, [1, 2, 3])
    assert books.cached([1, 2, 3, 4, 5, 6], "") == 3


def test_a_newcomer_runs_beside_the_others() -> None:
    books = region(5, compact=True)
    leave(books, [1], [2], [3], [4], [5])
    running = {books.take([9], 5, "").sequence for _ in range(3)}
    assert running == {0, 1, 2}
    books.give_back(SequenceId(1), [1])
    assert books.take([9], 5, "").sequence == 1, "the gap is filled"


def test_without_host_memory_the_place_that_was_free_longest_is_taken() -> None:
    books = region(5)
    order = [books.take([0], LIMIT, "").sequence for _ in range(5)]
    for sequence in (0, 2, 4, 1, 3):
        books.give_back(order[sequence], [sequence, 7])
    assert [books.take([9], 5, "").sequence for _ in range(5)] == [0, 2, 4, 1, 3]


def test_a_conversation_that_lies_apart_is_copied_beside_the_others() -> None:
    books = region(5, compact=True)
    *_, apart = leave(books, [1], [2], [3], [4], [5, 6, 7, 8])
    assert books.take([9], 5, "").sequence == 0
    taken = books.take([5, 6, 7, 8, 9], 10, "")
    assert (taken.sequence, taken.cached, taken.share) == (1, 0, Source(apart, 4))
    assert taken.changes == (Evicted(SequenceId(1), "", [2], keep=0),)


@pytest.mark.parametrize(("running", "history"), [(0, [5, 6]), (3, [5, 6, 7, 8])], ids=["short", "beside"])
def test_it_goes_on_where_it_is_if_a_copy_brings_nothing(running: int, history: list[int]) -> None:
    books = region(5, compact=True)
    *_, place = leave(books, [10], [11], [12], [13], history)
    assert books.take([10 + running, 9], 5, "").sequence == running
    taken = books.take([*history, 9], 10, "")
    assert (taken.sequence, taken.cached, taken.share) == (place, len(history), None)


def test_alone_a_conversation_goes_on_where_it_is() -> None:
    books = region(5, compact=True)
    *_, place = leave(books, [1], [2], [3], [4], [5, 6, 7, 8])
    taken = books.take([5, 6, 7, 8, 9], 10, "")
    assert (taken.sequence, taken.cached, taken.share) == (place, 4, None)

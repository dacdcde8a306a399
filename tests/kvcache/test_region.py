from __future__ import annotations

import pytest

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache import CellUse, Holding, Region, RegionPlan

LIMIT = 100


def region(places: int = 3, *, can_roll_back: bool = True) -> Region:
    return Region(RegionPlan(cells=512, places=places, limit=LIMIT, sequences=places), can_roll_back)


def leave(books: Region, *histories: list[int], scope: str = "") -> list[SequenceId]:
    """Let one sequence after the other end, each on a place of its own, and return their places."""
    taken = [books.take([0], LIMIT, scope).sequence for _ in histories]
    for sequence, history in zip(taken, histories, strict=True):
        books.give_back(sequence, history)
    return taken


def test_finished_sequence_is_continued_on_its_place() -> None:
    books = region()
    _, place, _ = leave(books, [9, 9], [1, 2, 3], [8])
    taken = books.take([1, 2, 3, 4, 5], 20, "")
    assert (taken.sequence, taken.cached, taken.cells) == (place, 3, 20)


def test_the_longest_match_wins() -> None:
    books = region()
    _, _, place = leave(books, [1, 2], [1, 2, 3, 9], [1, 2, 3, 4])
    assert books.cached([1, 2, 3, 4, 5], "") == 4
    assert books.take([1, 2, 3, 4, 5], 20, "").sequence == place


def test_a_conversation_that_only_begins_alike_does_not_take_the_place_of_another() -> None:
    books = region(places=2)
    place, other = leave(books, [1, 2, 3, 4, 5, 6, 7, 8], [])
    assert books.cached([1, 2, 3, 9], "") == 0
    assert books.take([1, 2, 3, 9], 20, "").sequence == other
    assert books.take([1, 2, 3, 4, 5, 6, 7, 8, 9], 20, "").sequence == place


def test_a_beginning_alike_is_used_when_no_place_is_empty() -> None:
    books = region(places=1)
    leave(books, [1, 2, 3, 4, 5, 6, 7, 8])
    assert books.take([1, 2, 3, 9], 20, "").cached == 3


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    books = region()
    leave(books, [1, 2, 3])
    assert books.cached([1, 2, 3], "") == 2
    assert books.cached([1], "") == 0
    assert books.cached([], "") == 0


def test_nothing_is_shared_with_another_scope() -> None:
    books = region(places=1)
    leave(books, [1, 2, 3], scope="alice")
    assert books.cached([1, 2, 3, 4], "alice") == 3
    assert books.cached([1, 2, 3, 4], "bob") == 0
    assert books.take([1, 2, 3, 4], 10, "bob").cached == 0


def test_what_another_scope_left_is_gone_once_the_place_was_taken() -> None:
    books = region(places=1)
    (place,) = leave(books, [1, 2, 3], scope="alice")
    books.take([5], 10, "bob")
    books.give_back(place)
    assert books.cached([1, 2, 3, 4], "alice") == 0


def test_without_roll_back_only_an_exact_continuation_is_shared() -> None:
    books = region(can_roll_back=False)
    leave(books, [1, 2, 3])
    assert books.cached([1, 2, 3, 4], "") == 3
    assert books.cached([1, 2, 3], "") == 0
    assert books.cached([1, 2, 9, 4], "") == 0


def test_a_stranger_takes_a_place_that_keeps_nothing() -> None:
    books = region()
    _, empty, _ = leave(books, [1, 2], [], [3, 4])
    assert books.take([7, 8], 10, "").sequence == empty


def test_a_stranger_takes_the_place_that_was_free_longest() -> None:
    books = region()
    first, second, third = leave(books, [1], [2], [3])
    assert [books.take([7, 8], 10, "").sequence for _ in range(3)] == [first, second, third]


def test_looking_changes_nothing() -> None:
    books = region()
    leave(books, [1, 2, 3])
    before = books.statistics()
    books.cached([1, 2, 3, 4], "")
    assert books.statistics() == before


def test_a_full_region_gives_no_place() -> None:
    books = region(places=2)
    first, second = books.take([1], 1, ""), books.take([1], LIMIT, "")
    assert {first.sequence, second.sequence} == {0, 1}
    assert books.free == 0
    assert books.cached([1, 2], "") == 0
    with pytest.raises(PoolExhaustedError):
        books.take([1], 1, "")


@pytest.mark.parametrize("cells", [0, -1, LIMIT + 1])
def test_cells_out_of_range_are_refused_with_the_range(cells: int) -> None:
    books = region()
    with pytest.raises(PoolError, match=rf"from 1 to {LIMIT} cells; got {cells}"):
        books.take([1], cells, "")
    assert books.free == 3


@pytest.mark.parametrize("sequence", [0, 2, 3, -1, -3])
def test_a_place_that_is_not_taken_cannot_be_given_back(sequence: int) -> None:
    books = region()
    books.take([1], 1, "")
    books.take([1], 1, "")
    books.give_back(SequenceId(0))
    with pytest.raises(PoolError, match="not taken"):
        books.give_back(SequenceId(sequence))
    books.check()


def test_a_place_cannot_be_counted_from_the_end() -> None:
    books = region(places=1)
    books.take([1], 1, "")
    with pytest.raises(PoolError, match="not taken"):
        books.give_back(SequenceId(-1))
    assert books.free == 0


def test_no_more_is_kept_than_was_reserved() -> None:
    books = region()
    taken = books.take([1, 2], 2, "")
    with pytest.raises(PoolError, match="3 cells cannot be kept where 2 were reserved"):
        books.give_back(taken.sequence, [1, 2, 3])
    assert books.free == 2
    books.give_back(taken.sequence, [1, 2])
    books.check()


def test_a_wiped_region_keeps_nothing() -> None:
    books = region()
    leave(books, [1, 2, 3])
    books.wipe()
    assert books.statistics().kept == 0
    assert books.cached([1, 2, 3, 4], "") == 0


def test_a_region_in_use_cannot_be_wiped_not_even_in_part() -> None:
    books = region()
    leave(books, [1, 2, 3], [4])
    taken = books.take([4, 5], 10, "")
    with pytest.raises(PoolError, match=f"sequence {taken.sequence} is still taken"):
        books.wipe()
    assert books.cached([1, 2, 3, 4], "") == 3


def test_statistics_count_every_cell_and_sequence() -> None:
    books = region()
    leave(books, [1, 2, 3])
    books.take([9], 40, "")
    statistics = books.statistics()
    assert (statistics.cells, statistics.sequences, statistics.free) == (512, 3, 2)
    assert (statistics.reserved, statistics.paused, statistics.kept) == (40, 0, 3)


def test_books_that_do_not_add_up_are_found() -> None:
    books = region(places=1)
    history = [1, 2, 3]
    leave(books, history)
    history.extend(range(LIMIT))  # the caller has broken its promise
    with pytest.raises(PoolError, match="do not add up"):
        books.check()


def test_it_tells_whose_its_cells_are() -> None:
    books = region()
    first = books.take([1, 2, 3], 8, "").sequence
    second = books.take([4, 5], 5, "").sequence
    books.pause(second)
    books.settle(second, 2)
    third = books.take([6, 7, 8, 9], 4, "").sequence
    books.give_back(third, [6, 7, 8])
    assert books.holdings() == (
        Holding(CellUse.RUNNING, 8, first),
        Holding(CellUse.PAUSED, 2, second),
        Holding(CellUse.KEPT, 3, third),
    )

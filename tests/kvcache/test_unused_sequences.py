"""What a shared region keeps of finished requests: who continues it, where it is held, and what is given up when."""

from __future__ import annotations

from llamalane.ids import SequenceId
from llamalane.kvcache import Merged, Moved, SharedRegion, Source
from tests.kvcache.shared_books import gone, leave, numbers, region, run

SIX, SEVEN, EIGHT = list(range(60, 66)), list(range(70, 76)), list(range(80, 86))
"""Six tokens each."""


def moved(sequence: int, to: int) -> Moved:
    return Moved(SequenceId(sequence), SequenceId(to))


def test_what_is_kept_is_continued_in_place() -> None:
    books = region()
    _, kept = leave(books, [8, 9], [1, 2, 3])
    taken = run(books, [1, 2, 3, 4, 5], 9)
    assert (taken.sequence, taken.cached, taken.share, taken.changes) == (kept, 3, None, ())
    assert numbers(books) == (9, 0, 2)
    assert books.cached([1, 2, 3, 4, 6], "") == 4


def test_what_only_begins_alike_is_shared_and_stays() -> None:
    books = region()
    (kept,) = leave(books, [1, 2, 3, 4, 5])
    taken = run(books, [1, 2, 9], 6)
    assert (taken.cached, taken.share, taken.changes) == (0, Source(kept, 2), ())
    assert taken.sequence != kept
    assert numbers(books) == (6, 0, 3)
    assert books.cached([1, 2, 3, 4, 5, 6], "") == 5


def test_the_same_prompt_again_leaves_the_first_answer_alone() -> None:
    books = region()
    (kept,) = leave(books, [1, 2, 3])
    taken = run(books, [1, 2, 3], 6)
    assert (taken.cached, taken.share) == (0, Source(kept, 2))


def test_what_two_hold_is_kept_until_the_last_of_them_goes() -> None:
    books = region(cells=20)
    (kept,) = leave(books, [1, 2, 3, 4])
    running = run(books, [1, 2, 3, 9], 4).sequence
    assert run(books, [7], 16).changes == (gone(kept, [1, 2, 3, 4]),)
    assert numbers(books) == (20, 0, 0)
    assert books.cached([1, 2, 3, 9, 9], "") == 3
    books.give_back(running, [1, 2, 3, 9])
    assert books.cached([1, 2, 3, 9, 9], "") == 4


def test_the_only_sequence_there_is_is_cut_and_continued() -> None:
    books = region(1)
    (kept,) = leave(books, [1, 2, 3, 4])
    taken = run(books, [1, 2, 9], 6)
    assert (taken.sequence, taken.cached, taken.share) == (kept, 2, None)
    assert taken.changes == (gone(kept, [1, 2, 3, 4], keep=2),)
    assert numbers(books) == (6, 0, 0)
    assert books.statistics().evictions == 1


def test_a_place_is_made_by_moving_what_was_kept_longest_to_a_keeper() -> None:
    books = region(2, keepers=2)
    first, second = leave(books, [1, 2], [3, 4])
    taken = run(books, [9])
    assert (taken.sequence, taken.changes) == (first, (moved(0, 3),))
    taken = run(books, [8])
    assert (taken.sequence, taken.changes) == (second, (moved(1, 4),))
    assert (books.cached([1, 2, 5], ""), books.cached([3, 4, 5], "")) == (2, 2)
    assert books.statistics().evictions == 0


def test_the_id_between_those_that_run_and_the_keepers_is_never_used() -> None:
    books = region(1, keepers=3)
    leave(books, [1, 1], [2, 2], [3, 3], [4, 4])
    assert sorted(books._unused.kept) == [0, 2, 3, 4]


def test_no_sequence_is_moved_while_one_is_empty() -> None:
    books = region(2, keepers=2)
    leave(books, [1, 2])
    assert run(books, [9]).changes == ()


def test_what_moved_is_as_old_as_before() -> None:
    books = region(2, keepers=1)
    leave(books, [1, 2], [3, 4])
    assert run(books, [9]).changes == (moved(0, 3),)
    assert run(books, [8]).changes == (gone(3, [1, 2]), moved(1, 3))


def test_a_keepers_cells_come_back_to_be_continued() -> None:
    books = region(1, keepers=1)
    leave(books, [1, 2, 3])
    leave(books, [9])
    books.forget(SequenceId(0))
    taken = run(books, [1, 2, 3, 4], 6)
    assert (taken.sequence, taken.cached, taken.share, taken.changes) == (0, 3, None, (moved(2, 0),))
    assert numbers(books) == (6, 0, 0)
    books.give_back(taken.sequence, [1, 2, 3, 4])
    assert run(books, [9]).changes == (moved(0, 2),)


def test_a_place_is_made_for_what_a_keeper_held_by_moving_another() -> None:
    books = region(1, keepers=2)
    leave(books, [1, 2, 3], [7, 8])
    taken = run(books, [1, 2, 3, 4])
    assert (taken.sequence, taken.cached) == (0, 3)
    assert taken.changes == (moved(0, 3), moved(2, 0))
    assert books.cached([7, 8, 9], "") == 2


def test_without_an_empty_keeper_another_is_given_up_for_what_a_keeper_held() -> None:
    books = region(1, keepers=1)
    leave(books, [1, 2, 3], [7, 8])
    taken = run(books, [1, 2, 3, 4])
    assert (taken.sequence, taken.cached) == (0, 3)
    assert taken.changes == (gone(0, [7, 8]), moved(2, 0))


def test_a_keeper_that_only_begins_alike_is_shared_where_it_is() -> None:
    books = region(2, keepers=1)
    leave(books, [1, 2, 3], [7, 8])
    books.give_back(run(books, [5, 6]).sequence)
    taken = run(books, [1, 2, 9])
    assert (taken.sequence, taken.cached, taken.share, taken.changes) == (0, 0, Source(SequenceId(3), 2), ())


def test_the_oldest_is_given_up_for_a_place_when_no_keeper_is_empty() -> None:
    books = region(2)
    leave(books, [1, 2], [3, 4])
    assert run(books, [9]).changes == (gone(0, [1, 2]),)
    assert books.cached([3, 4, 5], "") == 2
    assert books.statistics().evictions == 1


def test_the_source_is_not_given_up_for_a_place() -> None:
    books = region(2)
    source, _ = leave(books, [1, 2, 3], [7, 8])
    taken = run(books, [1, 2, 9])
    assert (taken.sequence, taken.share, taken.changes) == (1, Source(source, 2), (gone(1, [7, 8]),))


def test_another_than_the_source_is_moved_for_a_place() -> None:
    books = region(2, keepers=1)
    source, _ = leave(books, [1, 2, 3], [7, 8])
    taken = run(books, [1, 2, 9])
    assert (taken.sequence, taken.share, taken.changes) == (1, Source(source, 2), (moved(1, 3),))


def test_the_source_is_moved_where_it_is_the_only_one_and_shared_from_there() -> None:
    books = region(1, keepers=1)
    leave(books, [1, 2, 3])
    taken = run(books, [1, 2, 9])
    assert (taken.sequence, taken.cached, taken.share) == (0, 0, Source(SequenceId(2), 2))
    assert taken.changes == (moved(0, 2),)
    assert books.cached([1, 2, 3, 4], "") == 3


def test_cells_come_from_those_used_longest_ago() -> None:
    books = region(4, cells=20, limit=20)
    first, second, third = leave(books, SIX, SEVEN, EIGHT)
    assert run(books, [1], 2).changes == ()
    assert run(books, [2], 1).changes == (gone(first, SIX),)
    assert run(books, [3], 6).changes == (gone(second, SEVEN),)
    assert (numbers(books), third) == ((9, 0, 6), 2)
    assert books.statistics().evictions == 2


def test_as_many_are_given_up_as_are_wanted() -> None:
    books = region(4, cells=20, limit=20)
    first, second, _ = leave(books, SIX, SEVEN, EIGHT)
    assert run(books, [1], 14).changes == (gone(first, SIX), gone(second, SEVEN))


def test_growing_gives_up_kept_cells() -> None:
    books = region(4, cells=20, limit=20)
    growing = run(books, [1], 2).sequence
    first, second = leave(books, SIX, SEVEN)
    assert books.grow(growing, 8) == ()
    assert books.grow(growing, 9) == (gone(first, SIX),)
    assert books.grow(growing, 20) == (gone(second, SEVEN),)


def test_what_is_continued_is_not_given_up_for_it() -> None:
    books = region(4, cells=20, limit=20)
    first, second, third = leave(books, SIX, SEVEN, EIGHT)
    taken = run(books, [*SIX, 1, 2], 18)
    assert (taken.sequence, taken.cached) == (first, 6)
    assert taken.changes == (gone(second, SEVEN), gone(third, EIGHT))
    assert numbers(books) == (18, 0, 0)


def test_what_is_shared_is_given_up_last() -> None:
    books = region(4, cells=20, limit=20)
    source, other = leave(books, SIX, SEVEN)
    taken = run(books, [*SIX[:3], 1], 12)
    assert (taken.share, taken.changes) == (Source(source, 3), (gone(other, SEVEN),))
    assert numbers(books) == (12, 0, 3)


def test_what_is_shared_is_cut_to_that_as_the_last_resort() -> None:
    books = region(4, cells=20, limit=20)
    source, other = leave(books, SIX, SEVEN)
    taken = run(books, [*SIX[:3], 1], 18)
    assert taken.share == Source(source, 3)
    assert taken.changes == (gone(other, SEVEN), gone(source, SIX, keep=3))
    assert numbers(books) == (18, 0, 0)
    books.give_back(taken.sequence)
    assert (numbers(books), books.cached(SIX, "")) == ((0, 0, 3), 3)
    assert books.statistics().evictions == 2


def test_the_source_that_was_moved_is_the_one_that_is_cut() -> None:
    books = region(1, cells=20, limit=20, keepers=1)
    leave(books, SIX)
    taken = run(books, [*SIX[:3], 1], 18)
    assert taken.share == Source(SequenceId(2), 3)
    assert taken.changes == (moved(0, 2), gone(2, SIX, keep=3))


def test_what_was_shared_counts_as_used_just_now() -> None:
    books = region(4, cells=20, limit=20)
    source, other = leave(books, SIX, SEVEN)
    books.give_back(run(books, [*SIX[:3], 1], 4).sequence)
    assert run(books, [9], 9).changes == (gone(other, SEVEN),)
    assert books.cached([*SIX, 1], "") == 6
    assert source != other


def test_what_ends_again_counts_as_used_just_now() -> None:
    books = region(4, cells=20, limit=20)
    leave(books, SIX, SEVEN)
    books.give_back(run(books, [*SIX, 1], 7).sequence, SIX)
    assert run(books, [9], 9).changes == (gone(1, SEVEN),)


def test_no_more_is_kept_than_is_wanted() -> None:
    books = region(most_kept=10)
    first, second = run(books, [1], 6).sequence, run(books, [2], 6).sequence
    assert books.give_back(first, SIX) == ()
    assert books.give_back(second, SEVEN) == (gone(first, SIX),)
    assert (numbers(books), books.room) == ((0, 0, 6), 100)


def test_as_much_is_kept_as_is_wanted() -> None:
    books = region(most_kept=12)
    leave(books, SIX, SEVEN)
    assert (numbers(books), books.statistics().evictions) == ((0, 0, 12), 0)


def test_nothing_is_kept_where_none_is_wanted() -> None:
    books = region(most_kept=0)
    sequence = run(books, [1], 6).sequence
    assert books.give_back(sequence, SIX) == (gone(sequence, SIX),)
    assert numbers(books) == (0, 0, 0)


def test_what_a_running_one_holds_as_well_does_not_count_as_kept() -> None:
    books = region(most_kept=0)
    run(books, [1, 2, 3, 4])
    sequence = run(books, [1, 2, 3, 5]).sequence
    assert books.give_back(sequence, [1, 2, 3]) == ()
    assert numbers(books) == (4, 0, 0)


def test_merged_tokens_are_merged_before_anything_is_given_up() -> None:
    books = region(most_kept=6)
    first, second = run(books, [1, 2, 3], 9).sequence, run(books, [1, 2, 3], 9).sequence
    books.give_back(first, [1, 2, 3, 4, 5])
    changes = books.give_back(second, [1, 2, 3, 4, 6, 7])
    assert changes == (Merged(second, first, 2, 4), gone(first, [1, 2, 3, 4, 5]))
    assert numbers(books) == (0, 0, 6)


def test_scopes_are_told_of_what_is_given_up() -> None:
    books: SharedRegion = region(1)
    leave(books, [1, 2], scope="alice")
    assert run(books, [1, 2], scope="bob").changes == (gone(0, [1, 2], scope="alice"),)

"""Sequences that share the cells of what they have in common: those that run, those that are paused, those that end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache import CellUse, Holding, RegionStatistics, SharedRegion, Source
from tests.kvcache.shared_books import gone, leave, numbers, region, run


def test_prompts_that_begin_alike_are_counted_once() -> None:
    books = region()
    first = run(books, [1, 2, 3, 4, 8], 10)
    assert (first.cached, first.share, first.changes) == (0, None, ())
    assert books.need([1, 2, 3, 4, 9], 12, "") == 8
    second = run(books, [1, 2, 3, 4, 9], 12)
    assert (second.cells, second.cached, second.share) == (12, 0, Source(first.sequence, 4))
    assert second.sequence != first.sequence
    assert (numbers(books), books.room) == ((18, 0, 0), 82)


def test_a_third_one_is_counted_from_the_longest_beginning_on() -> None:
    books = region()
    run(books, [1, 2, 3, 8], 4)
    longest = run(books, [1, 2, 3, 4, 5, 9], 6).sequence
    assert books.cached([1, 2, 3, 4, 5, 6], "") == 5
    assert run(books, [1, 2, 3, 4, 5, 6], 9).share == Source(longest, 5)
    assert numbers(books) == (4 + 3 + 4, 0, 0)


def test_the_last_token_of_a_prompt_is_its_own() -> None:
    books = region()
    first = run(books, [1, 2, 3]).sequence
    assert books.cached([1, 2, 3], "") == 2
    assert books.need([1, 2, 3], 3, "") == 1
    assert run(books, [1, 2, 3]).share == Source(first, 2)
    assert run(books, [1]).share is None
    assert numbers(books) == (3 + 1 + 1, 0, 0)


def test_what_is_generated_is_its_own_until_it_ends() -> None:
    books = region()
    first = run(books, [1, 2], 10).sequence
    assert books.cached([1, 2, 3, 4], "") == 1
    books.give_back(first, [1, 2, 3])
    assert books.cached([1, 2, 3, 4], "") == 3


def test_nothing_is_shared_with_another_scope() -> None:
    books = region()
    run(books, [1, 2, 3, 4], scope="alice")
    leave(books, [1, 2, 3, 4], scope="alice")
    assert books.cached([1, 2, 3, 4], "bob") == 0
    assert books.need([1, 2, 3, 4], 4, "bob") == 4
    taken = run(books, [1, 2, 3, 4], scope="bob")
    assert (taken.cached, taken.share) == (0, None)


def test_a_prompt_of_nothing_shares_nothing() -> None:
    books = region()
    run(books, [1, 2, 3])
    taken = books.take([], 1, "")
    assert (taken.cells, taken.cached, taken.share) == (1, 0, None)
    assert numbers(books) == (4, 0, 0)
    assert books.give_back(taken.sequence) == ()
    assert books.free == 2


def test_restored_cells_are_of_its_own() -> None:
    books = region()
    run(books, [1, 2, 3, 4, 5])
    taken = books.take([1, 2, 3, 4, 9], 8, "", restored=True)
    assert (taken.cached, taken.share) == (0, None)
    assert numbers(books) == (5 + 8, 0, 0)
    assert books.own(taken.sequence) == 8


def test_restored_cells_leave_alone_what_is_kept() -> None:
    books = region()
    (kept,) = leave(books, [1, 2, 3])
    taken = books.take([1, 2, 3, 4], 8, "", restored=True)
    assert (taken.cached, taken.share, taken.changes) == (0, None, ())
    assert taken.sequence != kept
    assert numbers(books) == (8, 0, 3)


def test_no_more_is_promised_than_there_is() -> None:
    books = region(cells=20)
    run(books, [1, 2, 3, 4, 5], 12)
    with pytest.raises(PoolExhaustedError, match="9 KV cells are wanted, and 8 can be promised"):
        run(books, [7], 9)
    with pytest.raises(PoolExhaustedError, match="9 KV cells are wanted, and 8 can be promised"):
        run(books, [1, 2, 3, 4, 9], 13)
    with pytest.raises(PoolExhaustedError, match="12 KV cells are wanted, and 8 can be promised"):
        books.take([1, 2, 3, 4, 9], 12, "", restored=True)
    assert numbers(books) == (12, 0, 0)
    assert run(books, [1, 2, 3, 4, 9], 12).cells == 12
    assert books.room == 0


def test_kept_cells_are_room() -> None:
    books = region(cells=20)
    leave(books, range(15))
    assert (books.room, books.need(list(range(16)), 16, "")) == (20, 16)
    assert numbers(books) == (0, 0, 15)


def test_no_more_sequences_are_taken_than_can_run() -> None:
    books = region(2, keepers=5)
    for left in (1, 0):
        run(books, [left, left])
        assert books.free == left
    with pytest.raises(PoolExhaustedError, match="no sequence is free"):
        run(books, [3])


def test_what_one_owns_alone_comes_free_with_it() -> None:
    books = region()
    first, second = run(books, [1, 2, 3, 4, 8], 10).sequence, run(books, [1, 2, 3, 4, 9], 12).sequence
    assert (books.own(first), books.own(second)) == (6, 8)
    books.give_back(second)
    assert (books.own(first), books.room) == (10, 90)
    books.give_back(first)
    assert books.room == 100


def test_what_others_only_keep_of_it_comes_free_with_it() -> None:
    books = region()
    (kept,) = leave(books, [1, 2, 3, 4])
    running = run(books, [1, 2, 3, 9], 10).sequence
    assert (running != kept, books.own(running)) == (True, 10)
    books.give_back(running)
    assert books.room == 100


def test_growing_promises_so_many_in_all() -> None:
    books = region()
    first = run(books, [1, 2, 3, 4, 8], 5).sequence
    second = run(books, [1, 2, 3, 4, 9], 5).sequence
    assert books.grow(second, 9) == ()
    assert (numbers(books), books.own(second)) == ((10, 0, 0), 5)
    assert books.grow(second, 9) == ()
    assert (numbers(books), books.own(first)) == ((10, 0, 0), 1)


def test_growing_beyond_what_there_is_changes_nothing() -> None:
    books = region(cells=20)
    growing, _ = run(books, [1], 4).sequence, run(books, [2], 8)
    leave(books, [7, 8, 9])
    before = books.statistics()
    assert books.grow(growing, 13) is None
    assert books.statistics() == before
    assert books.grow(growing, 12) == (gone(2, [7, 8, 9]),)
    assert numbers(books) == (20, 0, 0)


def test_a_paused_sequence_has_what_was_promised_until_it_is_known_what_it_fills() -> None:
    books = region()
    sequence = run(books, [1, 2, 3], 10).sequence
    books.pause(sequence)
    assert numbers(books) == (0, 10, 0)
    books.settle(sequence, 6)
    assert (numbers(books), books.room) == ((0, 6, 0), 94)
    assert books.cached([1, 2, 3], "") == 2


def test_a_prompt_that_is_paused_half_way_offers_what_it_got_to() -> None:
    books = region()
    sequence = run(books, [1, 2, 3, 4, 5, 6], 10).sequence
    books.pause(sequence)
    assert books.cached([1, 2, 3, 4, 5, 6], "") == 0
    books.settle(sequence, 3)
    assert (numbers(books), books.own(sequence)) == ((0, 3, 0), 3)
    assert books.cached([1, 2, 3, 4, 5, 6], "") == 3
    assert run(books, [1, 2, 3, 4, 5, 6], 10).share == Source(sequence, 3)
    assert numbers(books) == (10, 0, 0)


def test_a_prompt_that_is_paused_at_its_last_token_loses_nothing() -> None:
    books = region()
    sequence = run(books, [1, 2, 3, 4], 10).sequence
    books.pause(sequence)
    books.settle(sequence, 3)
    assert (numbers(books), books.cached([1, 2, 3, 4], "")) == ((0, 3, 0), 3)


def test_a_follower_of_what_is_paused_half_way_has_the_rest_for_itself() -> None:
    books = region()
    first = run(books, [1, 2, 3, 4, 5, 8], 6).sequence
    second = run(books, [1, 2, 3, 4, 5, 9], 6).sequence
    assert numbers(books) == (7, 0, 0)
    books.pause(first)
    books.settle(first, 2)
    assert (books.own(first), books.own(second)) == (0, 4)
    assert numbers(books) == (6, 0, 0)


def test_a_resumed_sequence_has_cells_to_grow_into() -> None:
    books = region()
    sequence = run(books, [1, 2, 3], 10).sequence
    books.pause(sequence)
    books.settle(sequence, 6)
    assert books.resume(sequence, 12) == ()
    assert numbers(books) == (12, 0, 0)
    assert books.grow(sequence, 13) == ()


def test_resuming_gives_up_kept_cells() -> None:
    books = region(cells=20)
    sequence = run(books, [1], 4).sequence
    books.pause(sequence)
    first, _ = leave(books, range(10, 18), range(20, 28))
    assert books.resume(sequence, 8) == (gone(first, list(range(10, 18))),)
    assert numbers(books) == (8, 0, 8)


def test_resuming_without_enough_cells_leaves_the_sequence_paused() -> None:
    books = region(cells=20)
    sequence = run(books, [1], 6).sequence
    books.pause(sequence)
    run(books, [2], 10)
    assert books.resume(sequence, 11) is None
    assert numbers(books) == (10, 6, 0)
    assert books.resume(sequence, 10) == ()
    assert numbers(books) == (20, 0, 0)


def test_what_ends_is_kept_with_what_it_generated() -> None:
    books = region()
    sequence = run(books, [1, 2, 3], 10).sequence
    assert books.give_back(sequence, [1, 2, 3, 4, 5]) == ()
    assert (numbers(books), books.free, books.room) == ((0, 0, 5), 3, 100)
    assert books.cached([1, 2, 3, 4, 5, 6], "") == 5


def test_what_is_cancelled_half_way_is_kept_as_far_as_it_got() -> None:
    books = region()
    sequence = run(books, [1, 2, 3, 4, 5], 10).sequence
    assert books.give_back(sequence, [1, 2]) == ()
    assert numbers(books) == (0, 0, 2)
    assert books.cached([1, 2, 3, 4, 5], "") == 2


def test_what_leaves_nothing_is_as_if_it_had_never_been() -> None:
    books = region(1)
    sequence = run(books, [1, 2, 3], 10).sequence
    assert books.give_back(sequence) == ()
    assert (numbers(books), books.free) == ((0, 0, 0), 1)
    taken = run(books, [1, 2, 3], 10)
    assert (taken.sequence, taken.cached, taken.changes) == (sequence, 0, ())


def test_a_paused_sequence_can_leave_its_cells_to_others() -> None:
    books = region()
    sequence = run(books, [1, 2], 6).sequence
    books.pause(sequence)
    books.settle(sequence, 4)
    assert books.give_back(sequence, [1, 2, 3, 4]) == ()
    assert (numbers(books), books.cached([1, 2, 3, 4, 5], "")) == ((0, 0, 4), 4)


def test_what_is_forgotten_is_not_kept() -> None:
    books = region(2)
    first, second = leave(books, [1, 2, 3], [7, 8])
    assert books.forget(first) == ()
    assert (numbers(books), books.cached([1, 2, 3, 4], ""), books.cached([7, 8, 9], "")) == ((0, 0, 2), 0, 2)
    assert books.statistics().evictions == 0
    assert run(books, [5, 6]).sequence == first
    assert books.forget(first) == ()
    assert books.forget(SequenceId(9)) == ()
    assert (numbers(books), second) == ((2, 0, 2), 1)


def test_all_that_is_kept_can_be_given_up_at_once() -> None:
    books = region(keepers=1)
    first, second = leave(books, [1, 2, 3], [1, 9])
    run(books, [1, 2, 3, 4])
    assert books.forget_all() == (gone(second, [1, 9]),)
    books.give_back(first, [1, 2, 3])
    assert books.forget_all() == (gone(first, [1, 2, 3]),)
    assert (numbers(books), books.statistics().evictions) == ((0, 0, 0), 2)
    assert books.forget_all() == ()


def test_a_wiped_region_keeps_nothing_and_remembers_what_it_gave_up() -> None:
    books = region(2, keepers=2)
    leave(books, [1, 2], [3, 4], [5, 6], [7, 8], [9, 9])
    assert books.statistics().evictions == 1
    books.wipe()
    assert (numbers(books), books.free, books.cached([9, 9, 9], "")) == ((0, 0, 0), 2, 0)
    assert books.statistics().evictions == 1
    assert run(books, [9, 9, 9]).changes == ()


def test_a_region_in_use_cannot_be_wiped() -> None:
    books = region()
    sequence = run(books, [1, 2]).sequence
    with pytest.raises(PoolError, match=f"sequence {sequence} is still taken"):
        books.wipe()
    books.pause(sequence)
    with pytest.raises(PoolError, match=f"sequence {sequence} is still taken"):
        books.wipe()
    assert numbers(books) == (0, 2, 0)


def test_statistics_count_every_cell_and_sequence_once() -> None:
    books = region(4, keepers=2)
    leave(books, [1, 2, 3, 4, 5])
    run(books, [1, 2, 8], 10)
    books.pause(run(books, [1, 2, 9], 7).sequence)
    assert books.statistics() == RegionStatistics(cells=100, reserved=10, paused=5, kept=3, sequences=4, free=2)
    assert (books.cells, books.places, books.limit, books.sequences) == (100, 4, 50, 4)
    assert (books.shares, books.partitioned, books.can_roll_back) == (True, False, True)


def test_what_two_paused_ones_share_counts_as_paused() -> None:
    books = region()
    first, second = run(books, [1, 2, 3, 8], 6).sequence, run(books, [1, 2, 3, 9], 6).sequence
    books.pause(first)
    assert numbers(books) == (6, 3, 0)
    books.pause(second)
    assert numbers(books) == (0, 9, 0)


@pytest.mark.parametrize("cells", [0, 2, -1, 51])
def test_cells_out_of_range_are_refused_with_the_range(cells: int) -> None:
    books = region(limit=50)
    with pytest.raises(PoolError, match=rf"a place has from 3 to 50 cells; got {cells}$"):
        books.take([1, 2, 3], cells, "")
    with pytest.raises(PoolError, match=r"a place has from 1 to 50 cells; got 0$"):
        books.take([], 0, "")
    assert (books.free, books.room) == (3, 100)


MISUSES: dict[str, tuple[Callable[[SharedRegion], object], str]] = {
    "own what is kept": (lambda books: books.own(SequenceId(2)), "sequence 2 is not taken"),
    "grow what is kept": (lambda books: books.grow(SequenceId(2), 9), "sequence 2 is not running"),
    "grow what is paused": (lambda books: books.grow(SequenceId(1), 9), "sequence 1 is not running"),
    "grow to less": (lambda books: books.grow(SequenceId(0), 7), "sequence 0 has 8 cells and can get 50; got 7"),
    "grow beyond the limit": (lambda books: books.grow(SequenceId(0), 51), "has 8 cells and can get 50; got 51"),
    "note what is paused": (lambda books: books.note_computed(SequenceId(1)), "sequence 1 is not running"),
    "note what is kept": (lambda books: books.note_computed(SequenceId(2)), "sequence 2 is not running"),
    "pause what is kept": (lambda books: books.pause(SequenceId(2)), "sequence 2 is not running"),
    "pause twice": (lambda books: books.pause(SequenceId(1)), "sequence 1 is not running"),
    "settle what runs": (lambda books: books.settle(SequenceId(0), 1), "sequence 0 is not paused"),
    "settle for more": (lambda books: books.settle(SequenceId(1), 9), "cannot fill 9 cells where 8 were promised"),
    "settle for a debt": (lambda books: books.settle(SequenceId(1), -1), "cannot fill -1 cells where 8 were"),
    "resume what runs": (lambda books: books.resume(SequenceId(0), 9), "sequence 0 is not paused"),
    "resume what is kept": (lambda books: books.resume(SequenceId(2), 9), "sequence 2 is not paused"),
    "resume with less": (lambda books: books.resume(SequenceId(1), 7), "sequence 1 fills 8 cells .* get 50; got 7"),
    "resume beyond the limit": (lambda books: books.resume(SequenceId(1), 51), "fills 8 .* can get 50; got 51"),
    "give back what is kept": (lambda books: books.give_back(SequenceId(2)), "sequence 2 is not taken"),
    "give back no sequence": (lambda books: books.give_back(SequenceId(-1)), "sequence -1 is not taken"),
    "keep too many": (lambda books: books.give_back(SequenceId(0), [1] * 9), "9 cells cannot be kept where 8 were"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_misuse_is_refused_and_changes_nothing(misuse: str) -> None:
    books = region()
    run(books, [1, 2, 3], 8)
    books.pause(run(books, [1, 2, 4], 8).sequence)
    leave(books, [7, 8])
    before = books.statistics()
    act, message = MISUSES[misuse]
    with pytest.raises(PoolError, match=message):
        act(books)
    assert books.statistics() == before
    books.check()


def forget_a_cell(books: SharedRegion) -> None:
    books._private -= 1


def lose_a_sequence(books: SharedRegion) -> None:
    books._unused._spare.pop()


def hold_secretly(books: SharedRegion) -> None:
    books._tree.insert(SequenceId(77), "", [7])


def use_what_is_kept(books: SharedRegion) -> None:
    books._tree.pin(SequenceId(1))


def lend_what_is_used(books: SharedRegion) -> None:
    books._tree.unpin(SequenceId(0))


def promise_too_much(books: SharedRegion) -> None:
    books._taken[SequenceId(0)].cells += 93
    books._private += 93


def count_a_holder_twice(books: SharedRegion) -> None:
    books._tree._paths[SequenceId(0)].last.holders += 1


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (forget_a_cell, r"do not add up: 8 cells of 7, sequences \[0, 1, 2, 4, 5\]"),
        (lose_a_sequence, r"do not add up: 8 cells of 8, sequences \[0, 1, 2, 4\]"),
        (hold_secretly, "a sequence holds cells that nobody knows of"),
        (use_what_is_kept, "a sequence holds cells that nobody knows of"),
        (lend_what_is_used, "a sequence holds cells that nobody knows of"),
        (promise_too_much, "more cells are promised than there are"),
        (count_a_holder_twice, "are counted wrongly"),
    ],
)
def test_books_that_do_not_add_up_are_found(spoil: Callable[[SharedRegion], None], complaint: str) -> None:
    books = region(keepers=2)
    run(books, [1, 2, 3], 10)
    leave(books, [7, 8])
    books.check()
    spoil(books)
    with pytest.raises(PoolError, match=complaint):
        books.check()


def test_cells_that_several_hold_belong_to_none_of_them_alone() -> None:
    books = region(4)
    first = run(books, [1, 2, 3, 4, 8], 10).sequence
    books.note_computed(first)
    second = run(books, [1, 2, 3, 4, 9], 12).sequence
    (third,) = leave(books, [5, 6, 7], scope="other")
    assert books.holdings() == (
        Holding(CellUse.RUNNING, 6, first),
        Holding(CellUse.RUNNING, 8, second),
        Holding(CellUse.RUNNING, 4),
        Holding(CellUse.KEPT, 3, third),
    )
    books.pause(second)
    books.settle(second, 5)
    assert Holding(CellUse.PAUSED, 1, second) in books.holdings()
    assert Holding(CellUse.RUNNING, 4) in books.holdings(), "a running sequence holds them too"

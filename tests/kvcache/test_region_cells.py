"""Who has how many cells: those that run, those that are paused, and those that keep what was left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache import CellChange, Evicted, Region, RegionPlan

CELLS = 20
LIMIT = 16


@pytest.fixture
def books() -> Region:
    return Region(RegionPlan(cells=CELLS, places=2, limit=LIMIT, sequences=4))


def run(books: Region, cells: int, tokens: Sequence[int] = (0,)) -> SequenceId:
    return books.take(tokens, cells, "").sequence


def keep(books: Region, *counts: int) -> list[SequenceId]:
    """Let sequences end one after the other that leave so many cells each."""
    taken = [run(books, max(count, 1)) for count in counts]
    for sequence, count in zip(taken, counts, strict=True):
        books.give_back(sequence, [100 * sequence + place for place in range(count)])
    return taken


def given_up(changes: Iterable[CellChange] | None) -> list[SequenceId]:
    """Return the sequences whose cells are all given up, and see that nothing else is to be done."""
    assert changes is not None
    evicted = [change for change in changes if isinstance(change, Evicted) and change.keep == 0]
    assert evicted == list(changes)
    return [change.sequence for change in evicted]


def numbers(books: Region) -> tuple[int, int, int, int]:
    """Return how many cells are reserved, paused, kept and can be reserved."""
    statistics = books.statistics()
    books.check()
    return statistics.reserved, statistics.paused, statistics.kept, books.room


def test_no_more_cells_are_reserved_than_there_are(books: Region) -> None:
    run(books, 12)
    with pytest.raises(PoolExhaustedError, match="9 KV cells are wanted, and 8 can be reserved"):
        run(books, 9)
    run(books, 8)
    assert numbers(books) == (20, 0, 0, 0)


def test_a_request_that_finds_too_few_cells_takes_nothing(books: Region) -> None:
    run(books, 12)
    before = books.statistics()
    with pytest.raises(PoolExhaustedError):
        run(books, 9)
    assert books.statistics() == before


def test_more_sequences_can_hold_cells_than_run(books: Region) -> None:
    assert (books.places, books.free) == (2, 4)
    for _ in range(3):
        books.pause(run(books, 2))
    assert books.free == 1


def test_kept_cells_can_be_reserved(books: Region) -> None:
    keep(books, 5, 5)
    assert numbers(books) == (0, 0, 10, 20)


def test_kept_cells_are_given_up_those_left_longest_ago_first(books: Region) -> None:
    first, second, third = keep(books, 6, 6, 6)
    assert given_up(books.take([0], 3, "").changes) == [first]
    assert numbers(books) == (3, 0, 12, 17)
    assert given_up(books.take([0], 6, "").changes) == [second]
    assert books.cached([100 * third, 100 * third + 1], "") == 0
    assert books.cached([100 * third + place for place in range(9)], "") == 6


def test_no_more_is_given_up_than_is_wanted(books: Region) -> None:
    keep(books, 6, 6)
    assert given_up(books.take([0], 8, "").changes) == []
    assert numbers(books) == (8, 0, 12, 12)


def test_as_many_are_given_up_as_are_wanted(books: Region) -> None:
    first, second, third = keep(books, 6, 6, 6)
    assert given_up(books.take([0], 14, "").changes) == [first, second]
    assert given_up(books.take([0], 6, "").changes) == [third]


def test_the_sequence_that_is_taken_is_not_among_those_given_up(books: Region) -> None:
    keep(books, 6, 6, 6)
    oldest = SequenceId(0)
    taken = books.take([0, 1, 2, 3, 4, 5, 6], 16, "")
    assert (taken.sequence, taken.cached) == (oldest, 6)
    assert given_up(taken.changes) == [1, 2]


def test_no_more_counts_as_held_than_was_reserved(books: Region) -> None:
    keep(books, 6)
    taken = books.take([0, 1, 2, 3, 4, 5, 6], 4, "")
    assert taken.cached == 4
    assert taken.changes == (Evicted(SequenceId(0), "", [0, 1, 2, 3, 4, 5], keep=4),)


def test_without_roll_back_nothing_is_held_where_less_was_reserved() -> None:
    books = Region(RegionPlan(cells=CELLS, places=2, limit=LIMIT, sequences=4), can_roll_back=False)
    keep(books, 6)
    taken = books.take([0, 1, 2, 3, 4, 5, 6], 4, "")
    assert taken.cached == 0
    assert given_up(taken.changes) == [taken.sequence]


def test_what_a_place_keeps_beyond_the_new_prompt_is_given_up_by_name(books: Region) -> None:
    for _ in range(3):
        run(books, 1)
    (place,) = keep(books, 6)
    held = [100 * place + token for token in range(6)]
    taken = books.take([*held[:4], 7, 8], 8, "")
    assert (taken.sequence, taken.cached) == (place, 4)
    assert taken.changes == (Evicted(place, "", held, keep=4),)


def test_a_stranger_is_told_what_is_lost_and_whose_it_was() -> None:
    books = Region(RegionPlan(cells=CELLS, places=1, limit=LIMIT, sequences=1))
    place = books.take([0], 4, "alice").sequence
    books.give_back(place, [1, 2, 3])
    assert books.take([1, 2, 3, 4], 4, "bob").changes == (Evicted(place, "alice", [1, 2, 3], keep=0),)


def test_nothing_is_given_up_where_a_sequence_is_continued(books: Region) -> None:
    keep(books, 6)
    assert books.take([0, 1, 2, 3, 4, 5, 6], 8, "").changes == ()


def test_each_giving_up_is_counted(books: Region) -> None:
    keep(books, 6, 6, 6)
    books.take([0], 14, "")
    assert books.statistics().evictions == 2
    books.take([200, 201, 202, 203, 7], 6, "")
    assert books.statistics().evictions == 3


def test_restored_cells_replace_what_a_place_keeps(books: Region) -> None:
    keep(books, 4, 4, 4, 4)
    taken = books.take([0, 1, 2, 3, 4], 4, "", restored=True)
    assert (taken.sequence, taken.cached) == (0, 0)
    assert given_up(taken.changes) == [0]


def test_restored_cells_go_to_a_place_that_keeps_nothing(books: Region) -> None:
    keep(books, 4)
    taken = books.take([0, 1, 2, 3, 4], 8, "", restored=True)
    assert (taken.sequence, taken.cached, taken.changes) == (1, 0, ())


def test_a_place_needs_all_its_cells_and_owns_them(books: Region) -> None:
    keep(books, 6)
    tokens = [0, 1, 2, 3, 4, 5, 6]
    assert books.need(tokens, 9, "") == 9
    sequence = run(books, 9, tokens)
    assert (books.room, books.own(sequence)) == (11, 9)
    books.pause(sequence)
    books.settle(sequence, 7)
    assert books.own(sequence) == 7
    books.give_back(sequence, tokens)
    assert books.room == 20


def test_what_is_forgotten_is_not_kept(books: Region) -> None:
    first, second = keep(books, 6, 6)
    assert books.forget(first) == ()
    assert books.cached([100 * first + token for token in range(7)], "") == 0
    assert books.cached([100 * second + token for token in range(7)], "") == 6
    assert numbers(books) == (0, 0, 6, 20)
    assert books.statistics().evictions == 0


def test_a_sequence_that_is_taken_is_not_forgotten(books: Region) -> None:
    sequence = run(books, 6)
    assert books.forget(sequence) == ()
    assert numbers(books) == (6, 0, 0, 14)


def test_all_that_is_kept_can_be_forgotten_at_once(books: Region) -> None:
    first, second = keep(books, 6, 6)
    running = run(books, 4)
    assert given_up(books.forget_all()) == [first, second]
    assert numbers(books) == (4, 0, 0, 16)
    assert books.statistics().evictions == 2
    books.give_back(running, [1, 2])
    assert given_up(books.forget_all()) == [running]


def test_growing_reserves_so_many_in_all(books: Region) -> None:
    sequence = run(books, 4)
    assert books.grow(sequence, 9) == ()
    assert numbers(books) == (9, 0, 0, 11)
    assert books.grow(sequence, 9) == ()
    assert numbers(books) == (9, 0, 0, 11)


def test_growing_gives_up_kept_cells(books: Region) -> None:
    running = run(books, 2)
    first, second = keep(books, 8, 8)
    assert given_up(books.grow(running, 5)) == [first]
    assert books.grow(running, 12) == ()
    assert given_up(books.grow(running, 13)) == [second]
    assert numbers(books) == (13, 0, 0, 7)


def test_growing_beyond_what_there_is_changes_nothing(books: Region) -> None:
    growing, _ = run(books, 4), run(books, 8)
    keep(books, 6)
    before = books.statistics()
    assert books.grow(growing, 13) is None
    assert books.statistics() == before
    assert books.grow(growing, 12) is not None


def test_a_paused_sequence_has_what_was_reserved_until_it_is_known_what_it_fills(books: Region) -> None:
    sequence = run(books, 10)
    books.pause(sequence)
    assert numbers(books) == (0, 10, 0, 10)
    books.settle(sequence, 6)
    assert numbers(books) == (0, 6, 0, 14)


def test_paused_cells_are_never_given_up(books: Region) -> None:
    books.pause(run(books, 12))
    with pytest.raises(PoolExhaustedError):
        run(books, 9)
    assert books.grow(run(books, 2), 9) is None
    assert numbers(books) == (2, 12, 0, 6)


def test_a_paused_sequence_is_not_taken_by_whoever_continues_it(books: Region) -> None:
    (sequence,) = keep(books, 6)
    continuing = [100 * sequence + place for place in range(8)]
    assert books.take(continuing, 8, "").sequence == sequence
    books.pause(sequence)
    assert books.cached(continuing, "") == 0
    assert books.take(continuing, 8, "").sequence != sequence


def test_a_resumed_sequence_runs_again_with_cells_to_grow_into(books: Region) -> None:
    sequence = run(books, 10)
    books.pause(sequence)
    books.settle(sequence, 6)
    assert books.resume(sequence, 12) == ()
    assert numbers(books) == (12, 0, 0, 8)
    assert books.grow(sequence, 13) == ()


def test_resuming_gives_up_kept_cells(books: Region) -> None:
    sequence = run(books, 4)
    books.pause(sequence)
    first, _ = keep(books, 8, 8)
    assert given_up(books.resume(sequence, 8)) == [first]
    assert numbers(books) == (8, 0, 8, 12)


def test_resuming_without_enough_cells_leaves_the_sequence_paused(books: Region) -> None:
    sequence = run(books, 6)
    books.pause(sequence)
    run(books, 10)
    before = books.statistics()
    assert books.resume(sequence, 11) is None
    assert books.statistics() == before
    assert books.resume(sequence, 10) == ()


def test_a_paused_sequence_can_leave_its_cells_to_others(books: Region) -> None:
    sequence = run(books, 6)
    books.pause(sequence)
    books.settle(sequence, 4)
    books.give_back(sequence, [1, 2, 3, 4])
    assert numbers(books) == (0, 0, 4, 20)
    assert books.cached([1, 2, 3, 4, 5], "") == 4


def test_a_paused_sequence_leaves_no_more_than_it_fills(books: Region) -> None:
    sequence = run(books, 6)
    books.pause(sequence)
    books.settle(sequence, 2)
    with pytest.raises(PoolError, match="3 cells cannot be kept where 2 were reserved"):
        books.give_back(sequence, [1, 2, 3])
    assert numbers(books) == (0, 2, 0, 18)


def test_a_region_with_a_paused_sequence_cannot_be_wiped(books: Region) -> None:
    sequence = run(books, 6)
    books.pause(sequence)
    with pytest.raises(PoolError, match=f"sequence {sequence} is still taken"):
        books.wipe()


MISUSES: dict[str, tuple[Callable[[Region], object], str]] = {
    "own what is free": (lambda books: books.own(SequenceId(3)), "sequence 3 is not taken"),
    "own no sequence": (lambda books: books.own(SequenceId(-1)), "sequence -1 is not taken"),
    "note what is free": (lambda books: books.note_computed(SequenceId(3)), "sequence 3 is not running"),
    "note what is paused": (lambda books: books.note_computed(SequenceId(1)), "sequence 1 is not running"),
    "grow what is free": (lambda books: books.grow(SequenceId(3), 5), "sequence 3 is not running"),
    "grow what is paused": (lambda books: books.grow(SequenceId(1), 5), "sequence 1 is not running"),
    "grow to less": (lambda books: books.grow(SequenceId(0), 3), "has 4 cells and can get 16; got 3"),
    "grow beyond the limit": (lambda books: books.grow(SequenceId(0), 17), "has 4 cells and can get 16; got 17"),
    "grow no sequence": (lambda books: books.grow(SequenceId(-1), 5), "sequence -1 is not running"),
    "pause what is free": (lambda books: books.pause(SequenceId(3)), "sequence 3 is not running"),
    "pause twice": (lambda books: books.pause(SequenceId(1)), "sequence 1 is not running"),
    "settle what runs": (lambda books: books.settle(SequenceId(0), 1), "sequence 0 is not paused"),
    "settle for more": (lambda books: books.settle(SequenceId(1), 5), "cannot fill 5 cells where 4 were reserved"),
    "settle for a debt": (lambda books: books.settle(SequenceId(1), -1), "cannot fill -1 cells where 4 were"),
    "resume what runs": (lambda books: books.resume(SequenceId(0), 5), "sequence 0 is not paused"),
    "resume with less": (lambda books: books.resume(SequenceId(1), 3), "fills 4 cells and can get 16; got 3"),
    "resume beyond the limit": (lambda books: books.resume(SequenceId(1), 17), "and can get 16; got 17"),
    "resume no sequence": (lambda books: books.resume(SequenceId(4), 5), "sequence 4 is not paused"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_misuse_is_refused_and_changes_nothing(books: Region, misuse: str) -> None:
    run(books, 4)
    books.pause(run(books, 4))
    before = books.statistics()
    act, message = MISUSES[misuse]
    with pytest.raises(PoolError, match=message):
        act(books)
    assert books.statistics() == before
    books.check()

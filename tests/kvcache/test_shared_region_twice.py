"""The same tokens wanted by two: who waits for whom, what is computed twice all the same, and what of it is merged."""

from __future__ import annotations

import pytest

from llamalane.ids import SequenceId
from llamalane.kvcache import Merged, RegionPlan, SharedRegion, Source
from tests.kvcache.shared_books import leave, numbers, region, run
from tests.kvcache.shared_cells import SharedCells

SIX = [1, 2, 3, 4, 5, 6]


def test_a_prompt_under_way_is_waited_for_where_that_saves_enough() -> None:
    books = region(worthwhile=4)
    first = run(books, [1, 2, 3, 4, 8]).sequence
    assert (books.cached([1, 2, 3, 4, 9], ""), books.need([1, 2, 3, 4, 9], 5, "")) == (4, 1)
    assert run(books, [1, 2, 3, 4, 9]).share == Source(first, 4)
    assert numbers(books) == (6, 0, 0)


def test_a_few_tokens_under_way_are_computed_twice_and_counted_twice() -> None:
    books = region(worthwhile=4)
    first = run(books, [1, 2, 3, 8]).sequence
    assert (books.cached([1, 2, 3, 9], ""), books.need([1, 2, 3, 9], 4, "")) == (0, 4)
    taken = run(books, [1, 2, 3, 9])
    assert (taken.cached, taken.share) == (0, None)
    assert (numbers(books), books.room) == ((8, 0, 0), 92)
    assert (books.own(first), books.own(taken.sequence)) == (4, 4)
    books.give_back(taken.sequence)
    assert books.room == 96


def test_a_few_tokens_are_shared_once_they_are_there() -> None:
    books = region(worthwhile=4)
    first = run(books, [1, 2, 3, 8]).sequence
    books.note_computed(first)
    assert run(books, [1, 2, 3, 9]).share == Source(first, 3)
    assert numbers(books) == (5, 0, 0)


def test_sixteen_tokens_are_worthwhile_by_default() -> None:
    books = SharedRegion(RegionPlan(cells=100, places=3, limit=50, sequences=3))
    first = run(books, range(20)).sequence
    assert run(books, [*range(15), 99]).share is None
    assert run(books, [*range(16), 99]).share == Source(first, 16)


@pytest.mark.parametrize("worthwhile", [3, 4])
def test_what_is_there_is_preferred_unless_waiting_gives_enough_tokens_more(worthwhile: int) -> None:
    books = region(worthwhile=worthwhile)
    (kept,) = leave(books, [1, 2, 3, 9])
    computing = run(books, [*SIX, 8]).sequence
    assert numbers(books) == (7, 0, 1)
    taken = run(books, [*SIX, 7])
    if worthwhile == 3:
        assert taken.share == Source(computing, 6)
        assert numbers(books) == (8, 0, 1)
    else:
        assert taken.share == Source(kept, 3)
        assert numbers(books) == (11, 0, 1)


def test_whoever_has_computed_tokens_is_preferred_to_whoever_is_computing_the_same() -> None:
    books = region()
    run(books, [*SIX, 8])
    there = books.take([*SIX, 9], 7, "", restored=True).sequence
    assert books.give_back(there, SIX) == ()
    taken = run(books, [1, 2, 3, 7])
    assert taken.share == Source(there, 3)
    assert numbers(books) == (7 + 4, 0, 3)


def test_a_prompt_shared_from_two_is_shared_from_the_one_that_has_it_when_it_is_computed() -> None:
    books = region(worthwhile=4)
    _, second = run(books, [1, 2, 3, 8]), run(books, [1, 2, 3, 9]).sequence
    books.note_computed(second)
    assert run(books, [1, 2, 3, 7]).share == Source(second, 3)


def test_a_continued_sequence_offers_its_beginning_to_others_at_once() -> None:
    books, lane = region(worthwhile=3), SharedCells(3, 0)
    history = [1, 2, 3, 4]
    first = run(books, history)
    lane.join(first, history, "")
    lane.compute(first.sequence, history)
    lane.stop(first.sequence)
    books.give_back(first.sequence, history)

    continued = run(books, [*history, 5, 6])
    lane.join(continued, [*history, 5, 6], "")
    assert continued.cached == 4

    other = run(books, [1, 2, 3, 9])
    assert other.share == Source(continued.sequence, 3)
    lane.join(other, [1, 2, 3, 9], "")
    assert lane.tokens(other.sequence) == [1, 2, 3], "though the rest of that prompt is not computed yet"


def test_the_new_tokens_of_a_continued_sequence_are_not_there_yet() -> None:
    books = region(4, worthwhile=3)
    leave(books, [1, 2, 3, 4], [1, 2, 3, 9])
    continued = run(books, [1, 2, 3, 4, 5, 6, 8])
    assert continued.cached == 4
    assert run(books, [1, 2, 3, 4, 5, 7]).share == Source(SequenceId(1), 3), "two tokens more are not worth waiting"
    books.note_computed(continued.sequence)
    assert run(books, [1, 2, 3, 4, 5, 8]).share == Source(continued.sequence, 5)


def test_a_continued_sequence_that_needs_its_last_token_only_is_there_at_once() -> None:
    books = region(worthwhile=10)
    (kept,) = leave(books, [1, 2, 3])
    assert run(books, [1, 2, 3, 4]).sequence == kept
    assert run(books, [1, 2, 9]).share == Source(kept, 2)


def test_what_a_paused_sequence_fills_is_there() -> None:
    books = region(worthwhile=10)
    sequence = run(books, [*SIX, 8]).sequence
    books.pause(sequence)
    assert books.cached([*SIX, 9], "") == 0
    books.settle(sequence, 3)
    assert run(books, [*SIX, 9]).share == Source(sequence, 3)


def test_the_same_tokens_computed_twice_are_merged() -> None:
    books = region()
    first, second = run(books, [1, 2, 3], 9).sequence, run(books, [1, 2, 3], 9).sequence
    assert books.give_back(first, [1, 2, 3, 4, 5]) == ()
    assert books.give_back(second, [1, 2, 3, 4, 6, 7]) == (Merged(second, first, 2, 4),)
    assert numbers(books) == (0, 0, 7)
    assert books.statistics().evictions == 0


@pytest.mark.parametrize("worthwhile", [2, 3])
def test_merging_must_save_enough(worthwhile: int) -> None:
    books = region(worthwhile=worthwhile)
    first = run(books, [1, 2, 3], 9).sequence
    books.note_computed(first)
    second = run(books, [1, 2, 3], 9).sequence
    books.give_back(first, [1, 2, 3, 4, 5])
    changes = books.give_back(second, [1, 2, 3, 4, 6, 7])
    if worthwhile == 2:
        assert changes == (Merged(second, first, 2, 4),)
        assert numbers(books) == (0, 0, 7)
    else:
        assert changes == ()
        assert numbers(books) == (0, 0, 9)
    assert books.cached([1, 2, 3, 4, 6, 7, 8], "") == 6


def test_what_did_not_wait_is_merged_from_its_first_token_on() -> None:
    books = region(worthwhile=3)
    first, second = run(books, [1, 2, 3], 9).sequence, run(books, [1, 2, 3], 9).sequence
    books.give_back(first, [1, 2, 3, 4, 5])
    assert numbers(books) == (9, 0, 5)
    assert books.give_back(second, [1, 2, 3, 4, 6, 7]) == (Merged(second, first, 0, 4),)
    assert numbers(books) == (0, 0, 7)


def test_restored_tokens_are_merged_from_the_first_on() -> None:
    books = region()
    (kept,) = leave(books, [1, 2, 3])
    restored = books.take([1, 2, 3, 4], 8, "", restored=True).sequence
    assert books.give_back(restored, [1, 2, 3, 4, 5]) == (Merged(restored, kept, 0, 3),)
    assert numbers(books) == (0, 0, 5)


def test_tokens_are_merged_with_a_running_sequence_that_has_computed_them() -> None:
    books = region()
    first = run(books, [1, 2], 9).sequence
    second = run(books, [1, 2, 3, 4, 5], 9).sequence
    books.note_computed(second)
    assert books.give_back(first, [1, 2, 3, 7]) == (Merged(first, second, 1, 3),)
    assert numbers(books) == (9, 0, 1)
    assert books.statistics().evictions == 0


def test_tokens_that_a_running_sequence_has_yet_to_compute_are_held_twice_until_that_one_ends() -> None:
    books = region()
    first = run(books, [1, 2], 9).sequence
    second = run(books, [1, 2, 3, 4, 5], 9).sequence
    assert books.give_back(first, [1, 2, 3, 7]) == ()
    assert (numbers(books), books.cached([1, 2, 3, 7, 7], "")) == ((9, 0, 3), 4)
    assert books.give_back(second, [1, 2, 3, 4, 5]) == (Merged(second, first, 1, 3),)
    assert numbers(books) == (0, 0, 6)
    assert books.statistics().evictions == 0


def test_restored_tokens_stay_though_a_running_sequence_has_yet_to_compute_the_same() -> None:
    books = region()
    restored = books.take([1, 2, 3], 8, "", restored=True).sequence
    run(books, [1, 9], 2)
    assert books.give_back(restored, [1, 2, 3]) == ()
    assert (numbers(books), books.cached([1, 2, 3, 4], "")) == ((2, 0, 3), 3)


def test_tokens_are_merged_with_a_paused_sequence_once_it_is_known_what_it_fills() -> None:
    books = region(worthwhile=2)
    paused = run(books, [1, 2, 3, 4, 5], 9).sequence
    first, second = run(books, [1], 9).sequence, run(books, [1], 9).sequence
    books.pause(paused)
    assert books.give_back(first, [1, 2]) == ()
    books.settle(paused, 3)
    assert books.give_back(second, [1, 2, 3]) == (Merged(second, paused, 0, 3),)
    assert books.resume(paused, 9) == ()
    assert numbers(books) == (9, 0, 2)


def test_cells_that_others_hold_too_are_not_merged() -> None:
    """Nothing would come free, and the follower would still hold the cells from which the rest goes on."""
    books = region(4)
    first = run(books, [*SIX, 7], 7).sequence
    restored = books.take([1, 2, 3, 4, 9], 5, "", restored=True).sequence
    books.give_back(restored, [1, 2, 3, 4])
    follower = run(books, [1, 2, 3, 4, 5, 9])
    assert follower.share == Source(first, 5)
    assert books.give_back(first, [*SIX, 7]) == ()
    assert books.give_back(follower.sequence, [1, 2, 3, 4, 5]) == ()
    assert numbers(books) == (0, 0, 7 + 4)


def test_what_others_hold_of_another_scope_is_not_merged() -> None:
    books = region()
    leave(books, [1, 2, 3], scope="alice")
    mine = run(books, [1, 2], 5, scope="bob").sequence
    assert books.give_back(mine, [1, 2, 3]) == ()
    assert numbers(books) == (0, 0, 6)


def test_nobody_counts_on_what_is_yet_to_be_computed_by_one_that_was_told_to_stop() -> None:
    books = region()
    first = run(books, [*SIX, 8]).sequence
    books.note_stopped(first)
    assert (books.cached([*SIX, 9], ""), books.need([*SIX, 9], 7, "")) == (0, 7)
    second = run(books, [*SIX, 9])
    assert (second.cached, second.share) == (0, None)
    assert run(books, [*SIX, 7]).share == Source(second.sequence, 6)
    assert numbers(books) == (7 + 7 + 1, 0, 0)


def test_what_one_has_computed_is_shared_though_it_was_told_to_stop() -> None:
    books = region()
    first = run(books, [*SIX, 8]).sequence
    books.note_computed(first)
    books.note_stopped(first)
    assert run(books, [*SIX, 9]).share == Source(first, 6)


def test_those_who_wait_already_are_counted_on_when_the_first_is_told_to_stop() -> None:
    books = region()
    first = run(books, [*SIX, 8]).sequence
    second = run(books, [*SIX, 9]).sequence
    books.note_stopped(first)
    assert run(books, [*SIX, 7]).share == Source(second, 6)


def test_what_one_had_computed_when_it_was_paused_is_shared_once_that_is_known() -> None:
    books = region()
    first = run(books, [*SIX, 8]).sequence
    books.pause(first)
    assert books.cached([*SIX, 9], "") == 0
    books.settle(first, 4)
    assert run(books, [*SIX, 9]).share == Source(first, 4)
    assert numbers(books) == (7, 0, 0)

from __future__ import annotations

import pytest

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache import BareRegion

TOKENS = [1, 2, 3]


def test_each_sequence_is_lent_once_and_comes_back() -> None:
    region = BareRegion(places=3, limit=8)
    places = [region.take(TOKENS, 0, "") for _ in range(3)]
    assert sorted(place.sequence for place in places) == [0, 1, 2]
    assert [(place.cells, place.cached, place.share, place.changes) for place in places] == [(0, 0, None, ())] * 3
    assert region.free == 0
    with pytest.raises(PoolExhaustedError):
        region.take(TOKENS, 0, "")
    assert region.give_back(places[1].sequence) == ()
    assert region.free == 1
    assert region.take(TOKENS, 0, "").sequence == places[1].sequence
    region.check()


def test_nothing_is_kept_found_or_needed() -> None:
    region = BareRegion(places=1, limit=8)
    sequence = region.take(TOKENS, 0, "scope").sequence
    region.note_computed(sequence)
    region.note_stopped(sequence)
    assert region.grow(sequence, 4) == ()
    assert (region.own(sequence), region.owned([sequence]), region.need(TOKENS, 4, "")) == (0, 0, 0)
    with pytest.raises(PoolError, match="nothing of it stays"):
        region.give_back(sequence, TOKENS)
    region.give_back(sequence)
    region.note_copy_cost(5)
    assert region.cached(TOKENS, "scope") == 0
    assert region.forget(sequence) == region.forget_all() == ()
    assert (region.cells, region.room, region.statistics().cells) == (0, 0, 0)


def test_misuse_is_refused() -> None:
    region = BareRegion(places=2, limit=3)
    with pytest.raises(PoolError, match="at most 3 tokens"):
        region.take([*TOKENS, 4], 0, "")
    sequence = region.take(TOKENS, 0, "").sequence
    other = SequenceId(1 - sequence)
    for misuse in (
        lambda: region.give_back(other),
        lambda: region.own(other),
        lambda: region.grow(other, 1),
        lambda: region.note_computed(other),
        lambda: region.note_stopped(other),
        lambda: region.pause(sequence),
        lambda: region.settle(sequence, 1),
        lambda: region.resume(sequence, 1),
        region.wipe,
    ):
        with pytest.raises(PoolError):
            misuse()
    region.check()
    region.give_back(sequence)
    region.wipe()


def test_books_that_do_not_add_up_are_told() -> None:
    region = BareRegion(places=2, limit=3)
    region._free.pop()
    with pytest.raises(PoolError):
        region.check()

"""A region beside books kept in the simplest way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache import Region, RegionPlan

LIMIT = 12
TOKENS = st.lists(st.integers(0, 1), max_size=LIMIT)
SCOPES = st.sampled_from(["alice", "bob"])


@dataclass
class Holder:
    sequence: SequenceId
    tokens: list[int]
    cells: int
    scope: str


@dataclass
class Free:
    kept: list[int]
    scope: str
    since: int

    def match(self, tokens: list[int], scope: str, *, can_roll_back: bool) -> int:
        if scope != self.scope:
            return 0
        wanted = tokens[:-1]
        common = 0
        while common < min(len(self.kept), len(wanted)) and self.kept[common] == wanted[common]:
            common += 1
        return common if can_roll_back or common == len(self.kept) else 0


class RegionMachine(RuleBasedStateMachine):
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.free: dict[int, Free] = {}
        self.reserved: dict[int, int] = {}
        self.clock = 0

    @initialize(places=st.integers(1, 4), can_roll_back=st.booleans())
    def open(self, places: int, can_roll_back: bool) -> None:
        self.can_roll_back = can_roll_back
        self.region = Region(RegionPlan(cells=256, places=places, limit=LIMIT), can_roll_back)
        self.free = {sequence: Free([], "", 0) for sequence in range(places)}

    @precondition(lambda self: self.free)
    @rule(target=held, tokens=TOKENS, cells=st.integers(1, LIMIT), scope=SCOPES)
    def take(self, tokens: list[int], cells: int, scope: str) -> Holder:
        matches = self._matches(tokens, scope)
        # A sequence of which less than half is shared is not continued: it is as good or bad as any other.
        continued = {
            sequence: match if 2 * match >= len(self.free[sequence].kept) else 0 for sequence, match in matches.items()
        }
        best = max(continued.values())
        assert self.region.cached(tokens, scope) == best
        taken = self.region.take(tokens, cells, scope)
        assert taken.cached == matches[taken.sequence]
        assert taken.cells == cells
        assert taken.sequence in self.free, "two hold the same place"
        equal = [self.free[sequence] for sequence, match in continued.items() if match == best]
        gone = self.free[taken.sequence]
        if any(not place.kept for place in equal):
            assert not gone.kept
        assert gone.since == min(place.since for place in equal if bool(place.kept) == bool(gone.kept))
        assert continued[taken.sequence] == best
        del self.free[taken.sequence]
        self.reserved[taken.sequence] = cells
        return Holder(taken.sequence, tokens, cells, scope)

    @rule(holder=consumes(held), more=TOKENS, share=st.floats(0, 1))
    def give_back(self, holder: Holder, more: list[int], share: float) -> None:
        history = (holder.tokens + more)[: holder.cells]
        kept = history[: round(share * len(history))]
        self.region.give_back(holder.sequence, kept)
        del self.reserved[holder.sequence]
        self.clock += 1
        self.free[holder.sequence] = Free(kept, holder.scope, self.clock)

    @precondition(lambda self: not self.free)
    @rule(tokens=TOKENS, scope=SCOPES)
    def take_from_a_full_region(self, tokens: list[int], scope: str) -> None:
        assert self.region.cached(tokens, scope) == 0
        with pytest.raises(PoolExhaustedError):
            self.region.take(tokens, 1, scope)

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def give_back_what_is_free(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.free)))
        with pytest.raises(PoolError):
            self.region.give_back(SequenceId(sequence))

    @precondition(lambda self: not self.reserved)
    @rule()
    def wipe(self) -> None:
        self.region.wipe()
        for place in self.free.values():
            place.kept = []

    @precondition(lambda self: self.reserved)
    @rule()
    def wipe_in_use(self) -> None:
        with pytest.raises(PoolError):
            self.region.wipe()

    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "region"):
            return
        self.region.check()
        statistics = self.region.statistics()
        assert statistics.free == self.region.free == len(self.free)
        assert statistics.places == len(self.free) + len(self.reserved)
        assert statistics.reserved == sum(self.reserved.values())
        assert statistics.kept == sum(len(place.kept) for place in self.free.values())
        assert statistics.reserved + statistics.kept <= statistics.cells

    def _matches(self, tokens: list[int], scope: str) -> dict[int, int]:
        return {
            sequence: place.match(tokens, scope, can_roll_back=self.can_roll_back)
            for sequence, place in self.free.items()
        }


RegionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRegionAgainstTheSimplestBooks = RegionMachine.TestCase

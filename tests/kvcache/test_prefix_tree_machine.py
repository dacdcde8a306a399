"""A prefix tree beside the cells that its holders hold, each a thing of its own, from which everything is counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llamalane.errors import PoolError
from llamalane.kvcache import PrefixTree, common_prefix

HOLDERS = st.integers(0, 7)
SCOPES = st.sampled_from(["red", "blue"])
TOKENS = st.lists(st.integers(0, 1), max_size=7)


@dataclass(frozen=True, eq=False)
class Cell:
    token: int


@dataclass
class Held:
    """What one holder holds; cells are shared when they are the same, not when they are equal."""

    scope: str
    cells: list[Cell]
    pinned: bool
    filled: bool
    stopped: bool = False

    @property
    def tokens(self) -> list[int]:
        return [cell.token for cell in self.cells]

    def common(self, other: Held) -> int:
        return common_prefix(self.cells, other.cells)


class CellsOfHolders(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree[int]()
        self.held: dict[int, Held] = {}

    @rule(data=st.data(), holder=HOLDERS, tokens=TOKENS, apart=st.booleans(), flags=st.tuples(*[st.booleans()] * 3))
    def insert(self, data: st.DataObject, holder: int, tokens: list[int], apart: bool, flags: tuple[bool, ...]) -> None:
        beside_one, pinned, filled = flags
        scope, shared, beside = data.draw(SCOPES), list[Cell](), None
        if beside_one and self.held:
            other = self.draw(data)
            scope, length = self.held[other].scope, data.draw(st.integers(0, len(self.held[other].cells)))
            beside, shared = (other, length), self.held[other].cells[:length]
            tokens = [*(cell.token for cell in shared), *tokens]
        if holder in self.held:
            with pytest.raises(PoolError):
                self.tree.insert(holder, scope, tokens, beside=beside, apart=apart, pinned=pinned, filled=filled)
            return
        joined = self.tree.insert(holder, scope, tokens, beside=beside, apart=apart, pinned=pinned, filled=filled)
        self.held[holder] = Held(scope, shared, pinned, filled)
        assert joined == len(shared) + self.lead_on(holder, tokens[len(shared) :], apart)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=TOKENS, apart=st.booleans())
    def extend(self, data: st.DataObject, tokens: list[int], apart: bool) -> None:
        holder = self.draw(data)
        joined = self.tree.extend(holder, tokens, apart=apart)
        assert joined == self.lead_on(holder, tokens, apart)

    def lead_on(self, holder: int, tokens: list[int], apart: bool) -> int:
        """Let a holder have `tokens` more, as it is in the tree already; return how many of them others held.

        Unless they are apart, it may have joined any one of those that hold most of them after its own cells.
        """
        held, joined = self.held[holder], 0
        start = len(held.cells)
        if not apart:
            others = [
                other
                for other in self.held
                if other != holder and self.held[other].scope == held.scope and held.common(self.held[other]) == start
                if not self.held[other].stopped
            ]
            matches = {other: common_prefix(self.held[other].tokens[start:], tokens) for other in others}
            joined = max(matches.values(), default=0)
            if joined:
                longest = [other for other, match in matches.items() if match == joined]
                chosen = next(other for other in longest if self.tree.common(holder, other) == start + joined)
                held.cells = self.held[chosen].cells[: start + joined]
        held.cells = [*held.cells, *map(Cell, tokens[joined:])]
        return joined

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def shorten(self, data: st.DataObject) -> None:
        holder = self.draw(data)
        cells = self.held[holder].cells
        length = data.draw(st.integers(0, len(cells)))
        freed = min(self.alone(holder), len(cells) - length)
        assert self.tree.shorten(holder, length) == freed
        self.held[holder].cells = cells[:length]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        holder = self.draw(data)
        if self.held[holder].pinned:
            with pytest.raises(PoolError):
                self.tree.remove(holder)
            return
        assert self.tree.remove(holder) == self.alone(holder)
        del self.held[holder]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), new=HOLDERS)
    def rename(self, data: st.DataObject, new: int) -> None:
        holder = self.draw(data)
        if new in self.held:
            with pytest.raises(PoolError):
                self.tree.rename(holder, new)
            return
        self.tree.rename(holder, new)
        self.held[new] = self.held.pop(holder)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def pin_or_unpin(self, data: st.DataObject) -> None:
        holder = self.draw(data)
        held = self.held[holder]
        (self.tree.unpin if held.pinned else self.tree.pin)(holder)
        held.pinned = not held.pinned

    @precondition(lambda self: self.held)
    @rule(data=st.data(), filled=st.booleans())
    def note_filled(self, data: st.DataObject, filled: bool) -> None:
        holder = self.draw(data)
        if filled:
            self.tree.note_stopped(holder, False)
            self.held[holder].stopped = False
        self.tree.note_filled(holder, filled)
        self.held[holder].filled = filled

    @precondition(lambda self: self.held)
    @rule(data=st.data(), stopped=st.booleans())
    def note_stopped(self, data: st.DataObject, stopped: bool) -> None:
        """Whoever is filled cannot be stopped, and whoever is stopped will not be filled before it goes on."""
        holder = self.draw(data)
        if not self.held[holder].filled:
            self.tree.note_stopped(holder, stopped)
            self.held[holder].stopped = stopped

    @rule(scope=SCOPES, tokens=TOKENS, filled=st.booleans())
    def match(self, scope: str, tokens: list[int], filled: bool) -> None:
        match = self.tree.match(scope, tokens, filled=filled)
        lengths = {
            holder: common_prefix(held.tokens, tokens)
            for holder, held in self.held.items()
            if held.scope == scope and (held.filled if filled else not held.stopped)
        }
        assert match.length == max(lengths.values(), default=0)
        assert (match.holder is None) == (match.length == 0)
        pinned = 0
        if match.holder is not None:
            assert lengths[match.holder] == match.length
            found = self.held[match.holder]
            pinned = max((found.common(one) for one in self.held.values() if one.pinned), default=0)
        assert match.pinned == min(pinned, match.length)

    @rule(scope=SCOPES, tokens=TOKENS)
    def match_whole(self, scope: str, tokens: list[int]) -> None:
        match = self.tree.match_whole(scope, tokens)
        lengths = {
            holder: len(held.cells)
            for holder, held in self.held.items()
            if held.scope == scope and held.tokens == tokens[: len(held.cells)]
        }
        assert match.length == max(lengths.values(), default=0)
        assert (match.holder is None) == (match.length == 0)
        if match.holder is not None:
            assert lengths[match.holder] == match.length

    @rule(some=st.sets(HOLDERS))
    def look_who_pins(self, some: set[int]) -> None:
        pinned = {holder: held for holder, held in self.held.items() if held.pinned}
        chosen = cells_of(held for holder, held in pinned.items() if holder in some)
        others = cells_of(held for holder, held in pinned.items() if holder not in some)
        assert self.tree.pinned_by(some & pinned.keys()) == len(chosen - others)

    @invariant()
    def everything_adds_up(self) -> None:
        self.tree.check()
        assert self.tree.span == len(cells_of(self.held.values()))
        assert self.tree.pinned_span == len(cells_of(held for held in self.held.values() if held.pinned))
        assert set(self.tree.holders) == self.held.keys()
        assert len(self.tree) == len(self.held)
        for holder, held in self.held.items():
            assert holder in self.tree
            assert self.tree.scope(holder) == held.scope
            assert self.tree.tokens(holder) == held.tokens
            assert self.tree.length(holder) == len(held.cells)
            assert self.tree.exclusive(holder) == self.alone(holder)
            assert self.tree.pinned(holder) == held.pinned

    @invariant()
    def what_two_have_in_common_are_the_same_cells(self) -> None:
        for holder, held in self.held.items():
            for other, others in self.held.items():
                assert self.tree.common(holder, other) == held.common(others)

    def alone(self, holder: int) -> int:
        """Return how many cells only this one holds."""
        others = cells_of(held for other, held in self.held.items() if other != holder)
        return len(cells_of([self.held[holder]]) - others)

    def draw(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.held)))


def cells_of(holders: Iterable[Held]) -> set[Cell]:
    return {cell for held in holders for cell in held.cells}


CellsOfHolders.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestCellsOfHolders = CellsOfHolders.TestCase

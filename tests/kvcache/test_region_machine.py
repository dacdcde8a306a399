"""A region beside books kept in the simplest way, and beside the cells of a lane that does what the region says."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache import CellChange, Evicted, Layout, Region, RegionPlan, TakenPlace
from tests.kvcache.holding import check_holdings

CELLS = 24
LIMIT = 12
TOKENS = st.lists(st.integers(0, 1), max_size=LIMIT)
COUNTS = st.integers(1, LIMIT)
SCOPES = st.sampled_from(["alice", "bob"])


class Use(enum.Enum):
    FREE = enum.auto()
    RUNNING = enum.auto()
    PAUSED = enum.auto()


@dataclass
class Sequence:
    """What is promised to a sequence; the tokens that its `cells` hold on the lane, and those of its prompt."""

    use: Use = Use.FREE
    promised: int = 0
    cells: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    scope: str = ""
    since: int = 0

    @property
    def held(self) -> int:
        """How many of the region's cells are its own."""
        return len(self.cells) if self.use is Use.FREE else self.promised

    @property
    def offered(self) -> list[int]:
        """What others can copy of it, now or once it is computed."""
        return self.cells if self.use is Use.FREE else self.prompt

    def match(self, tokens: list[int], scope: str, *, can_roll_back: bool) -> int:
        if scope != self.scope:
            return 0
        wanted = tokens[:-1]
        common = 0
        while common < min(len(self.offered), len(wanted)) and self.offered[common] == wanted[common]:
            common += 1
        return common if can_roll_back or common == len(self.offered) else 0


@dataclass
class Place:
    """What a request is to get: one of these sequences, which keeps so much of its prompt."""

    sequences: set[SequenceId]
    cached: int


@dataclass
class Copy:
    """So much of a prompt is to be copied from one of these sequences."""

    sources: set[SequenceId]
    length: int


class RegionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sequences: dict[SequenceId, Sequence] = {}
        self.clock = 0
        self.evictions = 0

    @initialize(
        count=st.integers(1, 5),
        can_roll_back=st.sampled_from([True, True, False]),
        layout=st.sampled_from(Layout),
        least_copy=st.integers(1, 4),
        compact=st.booleans(),
    )
    def open(self, count: int, can_roll_back: bool, layout: Layout, least_copy: int, compact: bool) -> None:
        self.can_roll_back, self.least_copy, self.compact = can_roll_back, least_copy, compact
        self.partitioned = layout is Layout.PARTITIONED
        self.copies = can_roll_back and self.partitioned
        self.cells = count * LIMIT if layout is Layout.PARTITIONED else CELLS
        plan = RegionPlan(cells=self.cells, places=count, limit=LIMIT, sequences=count, layout=layout)
        self.region = Region(plan, can_roll_back, least_copy, compact)
        self.sequences = {SequenceId(i): Sequence() for i in range(count)}

    @rule(tokens=TOKENS, cells=COUNTS, scope=SCOPES, restored=st.sampled_from([False, False, False, True]))
    def take(self, tokens: list[int], cells: int, scope: str, restored: bool) -> None:
        free = self.having(Use.FREE)
        assert self.region.cached(tokens, scope) == self.foreseen(tokens, scope)
        assert self.region.need(tokens, cells, scope) == cells
        if not free or cells > self.room():
            with pytest.raises(PoolExhaustedError):
                self.region.take(tokens, cells, scope, restored=restored)
            return
        wanted = [] if restored else tokens
        place = self.place(wanted, cells, scope)
        copy = self.copy(wanted, cells, scope, place)
        taken = self.region.take(tokens, cells, scope, restored=restored)
        assert (taken.share is None) == (copy is None)
        if copy is not None and taken.share is not None:
            assert taken.share.sequence in copy.sources
            assert taken.share.length == copy.length
            place = self.place_for_a_copy(wanted, scope, taken.share.sequence)
        assert taken.sequence in place.sequences
        assert (taken.cells, taken.cached) == (cells, place.cached)
        self.join(taken, tokens, scope)

    def place(self, tokens: list[int], cells: int, scope: str) -> Place:
        free = self.having(Use.FREE)
        merits = [
            (self.continued(each, tokens, scope), *self.merits(sequence, not each.cells))
            for sequence, each in free.items()
        ]
        best = oldest(free, merits)
        cached = self.match(self.sequences[min(best)], tokens, scope)
        if cached > cells:
            cached = cells if self.can_roll_back else 0
        return Place(best, cached)

    def copy(self, tokens: list[int], cells: int, scope: str, place: Place) -> Copy | None:
        if not self.copies:
            return None
        matches = {
            sequence: self.match(each, tokens, scope)
            for sequence, each in self.sequences.items()
            if sequence not in place.sequences
        }
        longest = max(matches.values(), default=0)
        if min(longest, cells) < place.cached + self.least_copy:
            return self.copy_away(cells, place)
        sources = {sequence for sequence, match in matches.items() if match == longest}
        return Copy(sources & self.having(Use.FREE).keys() or sources, min(longest, cells))

    def copy_away(self, cells: int, place: Place) -> Copy | None:
        """What a place keeps that lies apart from those that run is copied to one that does not."""
        apart = not any(map(self.neighbours, place.sequences))
        beside = any(map(self.neighbours, self.having(Use.FREE)))
        if self.compact and apart and beside and place.cached >= self.least_copy:
            return Copy(place.sequences, place.cached)
        return None

    def place_for_a_copy(self, tokens: list[int], scope: str, source: SequenceId) -> Place:
        free = {sequence: each for sequence, each in self.having(Use.FREE).items() if sequence != source}
        merits = [
            self.merits(sequence, self.match(each, tokens, scope) == len(each.cells)) for sequence, each in free.items()
        ]
        return Place(oldest(free, merits), 0)

    def merits(self, sequence: SequenceId, loses_nothing: bool) -> tuple[bool, bool, int]:
        neighbours = self.neighbours(sequence) if self.compact else 0
        return neighbours > 0, loses_nothing, neighbours

    def neighbours(self, sequence: SequenceId) -> int:
        if not self.partitioned:
            return 0
        return sum(abs(other - sequence) == 1 for other in self.having(Use.RUNNING))

    def join(self, taken: TakenPlace, tokens: list[int], scope: str) -> None:
        """Do with the lane's cells what the region says, and see that it is no more and no less than needed."""
        chosen, changes = self.sequences[taken.sequence], list(taken.changes)
        if len(chosen.cells) > taken.cached:
            self.see(changes.pop(0), taken.sequence, keep=taken.cached)
        assert chosen.cells == tokens[: taken.cached]
        chosen.use, chosen.promised, chosen.scope, chosen.prompt = Use.RUNNING, taken.cells, scope, tokens[:-1]
        self.remove(tuple(changes))
        if taken.share is not None:
            source = self.sequences[taken.share.sequence]
            assert source.offered[: taken.share.length] == tokens[: taken.share.length]
            chosen.cells = source.cells[: taken.share.length]

    @precondition(lambda self: self.having(Use.RUNNING))
    @rule(data=st.data(), tokens=TOKENS)
    def compute(self, data: st.DataObject, tokens: list[int]) -> None:
        """A row computes as many tokens of its prompt, and then generates these."""
        sequence, running = self.draw(data, Use.RUNNING)
        left = running.prompt[len(running.cells) :]
        running.cells += [*left, *tokens][: len(tokens)]
        del running.cells[running.promised :]
        self.region.note_computed(sequence)

    @precondition(lambda self: self.having(Use.RUNNING))
    @rule(data=st.data(), cells=COUNTS)
    def grow(self, data: st.DataObject, cells: int) -> None:
        sequence, running = self.draw(data, Use.RUNNING)
        more = max(cells, running.promised)
        fits = more - running.promised <= self.room()
        evicted = self.region.grow(sequence, more)
        assert (evicted is not None) == fits
        if evicted is not None:
            running.promised = more
            self.remove(evicted)

    @precondition(lambda self: self.having(Use.RUNNING))
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        sequence, running = self.draw(data, Use.RUNNING)
        self.region.pause(sequence)
        running.use = Use.PAUSED

    @precondition(lambda self: self.having(Use.PAUSED))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        sequence, paused = self.draw(data, Use.PAUSED)
        self.region.settle(sequence, len(paused.cells))
        paused.promised = len(paused.cells)
        del paused.prompt[paused.promised :]

    @precondition(lambda self: self.having(Use.PAUSED))
    @rule(data=st.data(), cells=COUNTS)
    def resume(self, data: st.DataObject, cells: int) -> None:
        sequence, paused = self.draw(data, Use.PAUSED)
        wanted = max(cells, paused.promised)
        fits = wanted - paused.promised <= self.room()
        evicted = self.region.resume(sequence, wanted)
        assert (evicted is not None) == fits
        if evicted is not None:
            paused.use, paused.promised = Use.RUNNING, wanted
            self.remove(evicted)

    @precondition(lambda self: self.having(Use.RUNNING, Use.PAUSED))
    @rule(data=st.data(), share=st.floats(0, 1))
    def give_back(self, data: st.DataObject, share: float) -> None:
        sequence, taken = self.draw(data, Use.RUNNING, Use.PAUSED)
        kept = taken.cells[: round(share * len(taken.cells))]
        own, room = self.region.own(sequence), self.region.room
        assert self.region.give_back(sequence, list(kept)) == ()
        assert self.region.room == room + own
        self.clock += 1
        taken.use, taken.promised, taken.cells, taken.since = Use.FREE, 0, kept, self.clock

    @rule(data=st.data())
    def do_what_its_use_forbids(self, data: st.DataObject) -> None:
        sequence, each = self.draw(data, *Use)
        forbidden = {
            Use.FREE: ["grow", "note_computed", "pause", "settle", "resume", "give_back", "own"],
            Use.RUNNING: ["settle", "resume"],
            Use.PAUSED: ["grow", "note_computed", "pause"],
        }[each.use]
        name = data.draw(st.sampled_from(forbidden))
        arguments = [LIMIT] if name in ("grow", "settle", "resume") else []
        with pytest.raises(PoolError):
            getattr(self.region, name)(sequence, *arguments)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        sequence, each = self.draw(data, *Use)
        assert self.region.forget(sequence) == ()
        if each.use is Use.FREE:
            each.cells = []

    @rule()
    def forget_all(self) -> None:
        kept = [sequence for sequence, free in self.having(Use.FREE).items() if free.cells]
        changes = self.region.forget_all()
        for change, sequence in zip(changes, kept, strict=True):
            self.see(change, sequence, keep=0)

    @rule()
    def wipe(self) -> None:
        if self.having(Use.RUNNING, Use.PAUSED):
            with pytest.raises(PoolError):
                self.region.wipe()
            return
        self.region.wipe()
        for sequence in self.sequences.values():
            sequence.cells = []

    @invariant()
    def the_books_agree(self) -> None:
        if not self.sequences:
            return
        self.region.check()
        statistics = self.region.statistics()
        assert statistics.sequences == len(self.sequences)
        assert statistics.free == self.region.free == len(self.having(Use.FREE))
        assert statistics.reserved == sum(each.held for each in self.having(Use.RUNNING).values())
        assert statistics.paused == sum(each.held for each in self.having(Use.PAUSED).values())
        assert statistics.kept == sum(each.held for each in self.having(Use.FREE).values())
        assert self.region.room == self.room()
        check_holdings(self.region, running=self.having(Use.RUNNING).keys(), paused=self.having(Use.PAUSED).keys())
        assert statistics.reserved + statistics.paused + statistics.kept <= statistics.cells == self.cells
        assert statistics.evictions == self.evictions

    @invariant()
    def the_lane_never_runs_out(self) -> None:
        assert sum(len(each.cells) for each in self.sequences.values()) <= (self.cells if self.sequences else 0)
        for each in self.having(Use.RUNNING, Use.PAUSED).values():
            assert len(each.cells) <= each.promised

    def having(self, *uses: Use) -> dict[SequenceId, Sequence]:
        return {sequence: each for sequence, each in self.sequences.items() if each.use in uses}

    def draw(self, data: st.DataObject, *uses: Use) -> tuple[SequenceId, Sequence]:
        sequence = data.draw(st.sampled_from(sorted(self.having(*uses))))
        return sequence, self.sequences[sequence]

    def match(self, each: Sequence, tokens: list[int], scope: str) -> int:
        return each.match(tokens, scope, can_roll_back=self.can_roll_back)

    def continued(self, each: Sequence, tokens: list[int], scope: str) -> int:
        """A sequence of which less than half is shared is not continued: it is as good or bad as any other."""
        match = self.match(each, tokens, scope)
        return match if 2 * match >= len(each.cells) else 0

    def foreseen(self, tokens: list[int], scope: str) -> int:
        own = max((self.continued(each, tokens, scope) for each in self.having(Use.FREE).values()), default=0)
        copied = max(self.match(each, tokens, scope) for each in self.sequences.values()) if self.copies else 0
        return copied if copied >= own + self.least_copy else own

    def room(self) -> int:
        return self.cells - sum(each.promised for each in self.sequences.values())

    def see(self, change: CellChange, sequence: SequenceId, keep: int) -> None:
        """Give up what a sequence keeps beyond its first cells, and compare what the region says of it."""
        each = self.sequences[sequence]
        assert change == Evicted(sequence, each.scope, each.cells, keep)
        each.cells = each.cells[:keep]
        self.evictions += 1

    def remove(self, changes: tuple[CellChange, ...]) -> None:
        """Give up kept cells, oldest first, until all that is promised fits, and compare."""
        told = iter(changes)
        for sequence, free in sorted(self.having(Use.FREE).items(), key=lambda entry: entry[1].since):
            if sum(each.held for each in self.sequences.values()) <= self.cells:
                break
            if free.cells:
                self.see(next(told), sequence, keep=0)
        assert list(told) == []


def oldest(sequences: dict[SequenceId, Sequence], merits: list[Any]) -> set[SequenceId]:
    """Return the sequences of the greatest merit that were free longest: several, if they were never taken."""
    ranks = {sequence: (merit, -each.since) for (sequence, each), merit in zip(sequences.items(), merits, strict=True)}
    return {sequence for sequence, rank in ranks.items() if rank == max(ranks.values())}


RegionMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestRegionAgainstTheSimplestBooks = RegionMachine.TestCase

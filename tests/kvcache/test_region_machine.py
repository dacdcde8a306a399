"""A region beside books kept in the simplest way, and beside the cells of a lane that does what the region says."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llamalane.errors import PoolError, PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache import Region, RegionPlan

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
    """What is promised to a sequence, and in `cells` the tokens that it holds on the lane."""

    use: Use = Use.FREE
    promised: int = 0
    cells: list[int] = field(default_factory=list)
    scope: str = ""
    since: int = 0

    @property
    def held(self) -> int:
        """How many of the region's cells are its own."""
        return len(self.cells) if self.use is Use.FREE else self.promised

    def match(self, tokens: list[int], scope: str, *, can_roll_back: bool) -> int:
        if scope != self.scope:
            return 0
        wanted = tokens[:-1]
        common = 0
        while common < min(len(self.cells), len(wanted)) and self.cells[common] == wanted[common]:
            common += 1
        return common if can_roll_back or common == len(self.cells) else 0


class RegionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sequences: dict[SequenceId, Sequence] = {}
        self.clock = 0

    @initialize(count=st.integers(1, 5), can_roll_back=st.booleans())
    def open(self, count: int, can_roll_back: bool) -> None:
        self.can_roll_back = can_roll_back
        plan = RegionPlan(cells=CELLS, places=count, limit=LIMIT, sequences=count)
        self.region = Region(plan, can_roll_back)
        self.sequences = {SequenceId(i): Sequence() for i in range(count)}

    @rule(tokens=TOKENS, cells=COUNTS, scope=SCOPES)
    def take(self, tokens: list[int], cells: int, scope: str) -> None:
        matches = {
            sequence: free.match(tokens, scope, can_roll_back=self.can_roll_back)
            for sequence, free in self.having(Use.FREE).items()
        }
        # A sequence of which less than half is shared is not continued: it is as good or bad as any other.
        continued = {
            sequence: match if 2 * match >= len(self.sequences[sequence].cells) else 0
            for sequence, match in matches.items()
        }
        best = max(continued.values(), default=0)
        assert self.region.cached(tokens, scope) == best
        if not matches or cells > self.room():
            with pytest.raises(PoolExhaustedError):
                self.region.take(tokens, cells, scope)
            return
        taken = self.region.take(tokens, cells, scope)
        equal = [self.sequences[sequence] for sequence, match in continued.items() if match == best]
        chosen = self.sequences[taken.sequence]
        assert chosen in equal
        if any(not free.cells for free in equal):
            assert not chosen.cells
        assert chosen.since == min(free.since for free in equal if bool(free.cells) == bool(chosen.cells))
        match = matches[taken.sequence]
        if match > cells:
            match = cells if self.can_roll_back else 0
        assert (taken.cells, taken.cached) == (cells, match)
        assert chosen.cells[: taken.cached] == tokens[: taken.cached]
        del chosen.cells[taken.cached :]
        chosen.use, chosen.promised, chosen.scope = Use.RUNNING, cells, scope
        self.remove(taken.evicted)

    @precondition(lambda self: self.having(Use.RUNNING))
    @rule(data=st.data(), tokens=TOKENS)
    def compute(self, data: st.DataObject, tokens: list[int]) -> None:
        _, running = self.draw(data, Use.RUNNING)
        running.cells.extend(tokens)
        del running.cells[running.promised :]

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
        self.region.give_back(sequence, list(kept))
        self.clock += 1
        taken.use, taken.promised, taken.cells, taken.since = Use.FREE, 0, kept, self.clock

    @rule(data=st.data())
    def do_what_its_use_forbids(self, data: st.DataObject) -> None:
        sequence, each = self.draw(data, *Use)
        forbidden = {
            Use.FREE: ["grow", "pause", "settle", "resume", "give_back"],
            Use.RUNNING: ["settle", "resume"],
            Use.PAUSED: ["grow", "pause"],
        }[each.use]
        name = data.draw(st.sampled_from(forbidden))
        arguments = [] if name in ("pause", "give_back") else [LIMIT]
        with pytest.raises(PoolError):
            getattr(self.region, name)(sequence, *arguments)

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
        assert statistics.reserved + statistics.paused + statistics.kept <= statistics.cells == CELLS

    @invariant()
    def the_lane_never_runs_out(self) -> None:
        assert sum(len(each.cells) for each in self.sequences.values()) <= CELLS
        for each in self.having(Use.RUNNING, Use.PAUSED).values():
            assert len(each.cells) <= each.promised

    def having(self, *uses: Use) -> dict[SequenceId, Sequence]:
        return {sequence: each for sequence, each in self.sequences.items() if each.use in uses}

    def draw(self, data: st.DataObject, *uses: Use) -> tuple[SequenceId, Sequence]:
        sequence = data.draw(st.sampled_from(sorted(self.having(*uses))))
        return sequence, self.sequences[sequence]

    def room(self) -> int:
        return CELLS - sum(each.promised for each in self.sequences.values())

    def remove(self, evicted: tuple[SequenceId, ...]) -> None:
        """Give up kept cells, oldest first, until all that is promised fits, and compare."""
        expected = []
        for sequence, free in sorted(self.having(Use.FREE).items(), key=lambda entry: entry[1].since):
            if sum(each.held for each in self.sequences.values()) <= CELLS:
                break
            if free.cells:
                expected.append(sequence)
                free.cells = []
        assert list(evicted) == expected


RegionMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestRegionAgainstTheSimplestBooks = RegionMachine.TestCase

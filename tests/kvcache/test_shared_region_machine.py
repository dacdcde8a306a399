"""A shared region beside the cells of a lane that does what the region says: every cell is counted once, never less."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llamalane.errors import PoolExhaustedError
from llamalane.ids import SequenceId
from llamalane.kvcache import RegionPlan, SharedRegion, common_prefix
from tests.kvcache.holding import check_holdings
from tests.kvcache.shared_cells import SharedCells

CELLS = 32
LIMIT = 14
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
SCOPES = st.sampled_from(["alice", "bob"])
COUNTS = st.integers(0, LIMIT)


class Use(enum.Enum):
    RUNNING = enum.auto()
    LEAVING = enum.auto()
    """It was told to stop, and its lane has done so, but has not said so yet."""
    PAUSING = enum.auto()
    """The same, and it will be paused."""
    PAUSED = enum.auto()


@dataclass
class Taken:
    """A request: its prompt, what is promised to it, and whose it is."""

    prompt: list[int]
    promised: int
    scope: str
    use: Use = Use.RUNNING


class SharedRegionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[SequenceId, Taken] = {}

    @initialize(
        sequences=st.integers(1, 4),
        keepers=st.integers(0, 3),
        most_kept=st.none() | st.integers(0, CELLS),
        worthwhile=st.integers(1, 5),
    )
    def open(self, sequences: int, keepers: int, most_kept: int | None, worthwhile: int) -> None:
        plan = RegionPlan(cells=CELLS, places=sequences, limit=LIMIT, sequences=sequences, keepers=keepers)
        self.most_kept = most_kept
        self.region = SharedRegion(plan, most_kept, worthwhile)
        self.worthwhile = worthwhile
        self.lane = SharedCells(sequences, keepers)

    @rule(tokens=TOKENS, more=st.integers(0, 4), scope=SCOPES)
    def take(self, tokens: list[int], more: int, scope: str) -> None:
        cells = len(tokens) + more
        need, room, cached = (
            self.region.need(tokens, cells, scope),
            self.region.room,
            self.region.cached(tokens, scope),
        )
        if not self.region.free or need > room:
            with pytest.raises(PoolExhaustedError):
                self.region.take(tokens, cells, scope)
            return
        there = self.there(tokens, scope)
        taken = self.region.take(tokens, cells, scope)
        assert self.region.room == room - need
        self.lane.change(taken.changes)
        self.lane.join(taken, tokens, scope)
        assert cached >= there + (self.worthwhile if taken.sequence in self.lane.awaits else 0)
        assert cached == max(taken.cached, 0 if taken.share is None else taken.share.length)
        assert cached < len(tokens)
        self.taken[taken.sequence] = Taken(tokens, cells, scope)

    @rule(tokens=TOKENS, length=COUNTS, scope=SCOPES)
    def restore(self, tokens: list[int], length: int, scope: str) -> None:
        """What was saved to host memory comes back, in cells of its own."""
        if not self.region.free or len(tokens) > self.region.room:
            return
        taken = self.region.take(tokens, len(tokens), scope, restored=True)
        assert (taken.cached, taken.share) == (0, None)
        self.lane.change(taken.changes)
        self.lane.cells.pop(taken.sequence, None)
        self.lane.join(taken, tokens, scope, tokens[: min(length, len(tokens) - 1)])
        self.taken[taken.sequence] = Taken(tokens, len(tokens), scope)

    @precondition(lambda self: self.having(Use.RUNNING))
    @rule(data=st.data(), count=st.integers(1, 5), token=st.integers(0, 1))
    def compute(self, data: st.DataObject, count: int, token: int) -> None:
        """A row computes some tokens more of its prompt, or generates some."""
        sequence = self.draw(data, Use.RUNNING)
        if sequence in self.lane.awaits:
            return
        row, done = self.taken[sequence], len(self.lane.cells[sequence])
        wanted = [*row.prompt, *[token] * LIMIT][done : min(done + count, row.promised)]
        self.lane.compute(sequence, wanted)
        if len(self.lane.cells[sequence]) >= len(row.prompt):
            self.region.note_computed(sequence)

    @precondition(lambda self: self.having(Use.RUNNING))
    @rule(data=st.data(), more=COUNTS)
    def grow(self, data: st.DataObject, more: int) -> None:
        sequence = self.draw(data, Use.RUNNING)
        cells, room = min(LIMIT, self.taken[sequence].promised + more), self.region.room
        changes = self.region.grow(sequence, cells)
        assert (changes is None) == (cells - self.taken[sequence].promised > room)
        if changes is not None:
            self.lane.change(changes)
            self.taken[sequence].promised = cells

    @precondition(lambda self: self.having(Use.RUNNING))
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        sequence = self.draw(data, Use.RUNNING)
        self.region.pause(sequence)
        self.taken[sequence].use = Use.PAUSED
        self.lane.stop(sequence)
        filled = len(self.lane.cells[sequence])
        self.region.settle(sequence, filled)
        self.taken[sequence].promised = filled

    @precondition(lambda self: self.having(Use.RUNNING))
    @rule(data=st.data(), pausing=st.booleans(), share=st.floats(0, 1))
    def stop(self, data: st.DataObject, pausing: bool, share: float) -> None:
        """A row is told to stop; others may come before it is known what it has computed."""
        sequence = self.draw(data, Use.RUNNING)
        whole = self.region._tree.filled(sequence)
        (self.region.pause if pausing else self.region.note_stopped)(sequence)
        self.taken[sequence].use = Use.PAUSING if pausing else Use.LEAVING
        self.lane.stop(sequence)
        if not pausing and not whole:
            self.lane.keep(sequence, round(share * len(self.lane.cells[sequence])))

    @precondition(lambda self: self.having(Use.LEAVING, Use.PAUSING))
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        """The lane says what a row holds that was told to stop."""
        sequence = self.draw(data, Use.LEAVING, Use.PAUSING)
        if self.taken[sequence].use is Use.PAUSING:
            filled = len(self.lane.cells[sequence])
            self.region.settle(sequence, filled)
            self.taken[sequence].use, self.taken[sequence].promised = Use.PAUSED, filled
        else:
            self.lane.change(self.region.give_back(sequence, self.lane.tokens(sequence)))
            del self.taken[sequence]

    @precondition(lambda self: self.having(Use.PAUSED))
    @rule(data=st.data(), more=COUNTS)
    def resume(self, data: st.DataObject, more: int) -> None:
        sequence = self.draw(data, Use.PAUSED)
        row = self.taken[sequence]
        cells, room = min(LIMIT, max(len(row.prompt), row.promised) + more), self.region.room
        changes = self.region.resume(sequence, cells)
        assert (changes is None) == (cells - row.promised > room)
        if changes is not None:
            self.lane.change(changes)
            self.lane.prompts[sequence] = row.prompt
            row.use, row.promised = Use.RUNNING, cells

    @precondition(lambda self: self.having(Use.RUNNING, Use.PAUSED))
    @rule(data=st.data(), share=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.0, 1.0]))
    def give_back(self, data: st.DataObject, share: float) -> None:
        sequence = self.draw(data, Use.RUNNING, Use.PAUSED)
        if self.taken[sequence].use is Use.RUNNING:
            self.lane.stop(sequence)
        length = round(share * len(self.lane.cells[sequence]))
        self.lane.keep(sequence, length)
        own, room = self.region.own(sequence), self.region.room
        assert self.region.owned(list(self.taken)) == CELLS - room
        changes = self.region.give_back(sequence, self.lane.tokens(sequence))
        assert self.region.room == room + own
        self.lane.change(changes)
        del self.taken[sequence]

    @rule()
    def forget_all(self) -> None:
        self.lane.change(self.region.forget_all())
        assert self.region.statistics().kept == 0

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """What one sequence kept is lost."""
        sequence = data.draw(st.sampled_from([SequenceId(0), *sorted(self.lane.cells)]))
        assert self.region.forget(sequence) == ()
        if sequence not in self.taken:
            self.lane.cells.pop(sequence, None)

    @precondition(lambda self: not self.taken)
    @rule()
    def wipe(self) -> None:
        self.region.wipe()
        self.lane.cells.clear()

    @invariant()
    def the_books_add_up(self) -> None:
        self.region.check()
        statistics = self.region.statistics()
        assert statistics.free == statistics.sequences - len(self.taken)
        assert statistics.evictions == self.lane.evictions
        assert statistics.cells - self.region.room == statistics.reserved + statistics.paused
        assert 0 <= statistics.kept <= (CELLS if self.most_kept is None else self.most_kept)
        paused = {sequence for sequence, taken in self.taken.items() if taken.use in (Use.PAUSED, Use.PAUSING)}
        check_holdings(self.region, running=self.taken.keys() - paused, paused=paused)

    @invariant()
    def the_lane_never_uses_more_than_is_counted(self) -> None:
        statistics = self.region.statistics()
        promised = statistics.reserved + statistics.paused
        assert self.lane.used <= promised + statistics.kept <= CELLS

    @invariant()
    def what_a_row_holds_are_its_own_tokens_and_of_its_own_scope(self) -> None:
        for sequence, row in self.taken.items():
            cells = self.lane.cells[sequence]
            assert all(cell.scope == row.scope for cell in cells)
            assert [cell.token for cell in cells][: len(row.prompt)] == row.prompt[: len(cells)]

    @invariant()
    def what_nobody_runs_is_counted_to_the_cell(self) -> None:
        if not self.having(Use.RUNNING, Use.LEAVING, Use.PAUSING):
            statistics = self.region.statistics()
            assert self.lane.used == statistics.paused + statistics.kept

    def there(self, tokens: list[int], scope: str) -> int:
        """Return how many of the first tokens, but for the last, are kept by a sequence that is not taken."""
        prompt = [(token, scope) for token in tokens[:-1]]
        kept = [cells for sequence, cells in self.lane.cells.items() if sequence not in self.taken]
        return max((common_prefix(prompt, [(cell.token, cell.scope) for cell in cells]) for cells in kept), default=0)

    def having(self, *uses: Use) -> list[SequenceId]:
        return [sequence for sequence, taken in self.taken.items() if taken.use in uses]

    def draw(self, data: st.DataObject, *uses: Use) -> SequenceId:
        return data.draw(st.sampled_from(sorted(self.having(*uses))))


TestSharedRegionMachine = SharedRegionMachine.TestCase
TestSharedRegionMachine.settings = settings(max_examples=150, stateful_step_count=80, deadline=None)

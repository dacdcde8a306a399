"""A lane without a model, a thread or a clock: it takes a step when the test says so.

It carries out plans as the protocol in `llamalane.streams.steps` tells, written anew and as plainly as possible, and
complains when the scheduler asks for what no lane could do. Each token that it chooses depends on all tokens before
it, so an output comes out right only if nothing was lost, repeated or mixed up on the way.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llamalane.errors import DecodeError, LlamalaneError
from llamalane.ids import LEAST_URGENT, PlanVersion, RequestId, SequenceId, StepNumber
from llamalane.streams import (
    Copied,
    FinishReason,
    Grant,
    Join,
    LaneFailed,
    LaneMessage,
    LaneReady,
    Leave,
    Merge,
    Move,
    Park,
    Parked,
    Parking,
    PromptProgress,
    Rank,
    Restore,
    Restored,
    RowOutput,
    SavedCells,
    SharedPrefix,
    StepPlan,
    StepReport,
    StepShare,
    StepTimes,
    Stow,
    Stowed,
    Trim,
)
from tests.scheduler.building import END

Speak = Callable[[Sequence[int]], int]
"""Chooses the token that comes after others."""
StepSeconds = Callable[[int, int], float]
"""How long a step takes that computes so many decode rows and so many prompt tokens."""


def letters(tokens: Sequence[int]) -> int:
    """Go on with a letter, for ever."""
    return ord("a") + _mixed(tokens) % 26


def letters_with_an_end(tokens: Sequence[int]) -> int:
    """Go on with a letter, or end now and then."""
    choice = _mixed(tokens) % 29
    return END if choice > 26 else ord("a") + choice % 26


def _mixed(tokens: Sequence[int]) -> int:
    return zlib.crc32("".join(map(chr, tokens)).encode())


def quick(rows: int, prompt_tokens: int) -> float:
    """Take as long for many rows as for one, and a bit more for each prompt token."""
    return 0.01 + 0.001 * prompt_tokens


def spoken(prompt: str, count: int, speak: Speak = letters) -> str:
    """Return what follows `prompt`: `count` letters, or fewer if it ends by itself."""
    tokens = [ord(letter) for letter in prompt]
    text = ""
    while len(text) < count and (token := speak(tokens)) != END:
        tokens.append(token)
        text += chr(token)
    return text


@dataclass(frozen=True, eq=False)
class Cell:
    """One cell, which several sequences may hold."""

    token: int


@dataclass(eq=False)
class ScriptedRow:
    join: Join
    tokens: list[int]
    computed: int
    cells: int | None
    turn: int
    """Of two rows, the one with the smaller number had its last part earlier."""
    chosen: int = 0
    started: bool = False
    sat_out: int = 0
    awaits: SharedPrefix | None = None

    @property
    def ready(self) -> int:
        if self.awaits is not None:
            return 0
        end = len(self.tokens)
        return max(0, (end if self.cells is None else min(end, self.cells)) - self.computed)


class ScriptedLane:
    """A `LaneBackend` with `room` cells in all, `limit` for each sequence. `cells` says what each one holds.

    `swap_works` tells whether saved cells can be put back, `shares` whether sequences can hold the same cells. In a
    step without prompts a row gains `at_once` tokens, as far as it may, as if it had drafted all but the first.
    """

    def __init__(
        self,
        name: str,
        *,
        limit: int,
        room: int,
        max_step_tokens: int = 512,
        can_roll_back: bool = True,
        swap_works: bool = True,
        shares: bool = False,
        at_once: int = 1,
        speak: Speak = letters,
        step_seconds: StepSeconds = quick,
    ) -> None:
        self.name = name
        self.max_step_tokens = max_step_tokens
        self.rows: dict[RequestId, ScriptedRow] = {}
        self.cells: dict[SequenceId, list[Cell]] = {}
        self.broken: set[RequestId] = set()
        """Requests whose next token cannot be chosen."""
        self.wasted_joins = 0
        """How often cells that should have been there could not be used."""
        self.closed = False
        self.steps: list[StepReport] = []
        self.swap_works = swap_works
        self.shares = shares
        self._at_once = at_once
        self.shared_tokens = 0
        """How many tokens were copied from other sequences."""
        self.stowed_tokens = 0
        """How many tokens were saved of sequences that no row used."""
        self.restored_tokens = 0
        """How many of these were put back."""
        self._copied: list[Copied] = []
        self._stowed: list[Stowed] = []
        self._restored: list[Restored] = []
        self.abandoned = 0
        self._limit = limit
        self._room = room
        self._can_roll_back = can_roll_back
        self._speak = speak
        self._step_seconds = step_seconds
        self._mailbox: StepPlan | None = None
        self._epoch = 0
        self._version = PlanVersion(0)
        self._prefill_tokens = 0
        self._share: StepShare | None = None
        self._number = 0
        self._turns = itertools.count()
        self._abandon: int | None = None
        self._receiver: Callable[[LaneMessage], None] | None = None

    @property
    def plan(self) -> StepPlan | None:
        """The plan that lies in the mailbox."""
        return self._mailbox

    def start(self, receiver: Callable[[LaneMessage], None]) -> None:
        self._receiver = receiver

    def post(self, plan: StepPlan) -> None:
        assert not self.closed
        self._mailbox = plan

    def close(self) -> None:
        self.closed = True

    def abandon(self, step: StepNumber) -> None:
        """Break off the step under way: the one that the next call of `step` would finish."""
        if step == self._number + 1 and self._ready:
            self._abandon = step

    def step(self, *, begun: bool = False) -> None:
        """Take the plan that lies there, if any, and compute one step if there are rows.

        A step that was abandoned, or had `begun`, was under way before the plan was there.
        """
        if self._abandon is not None:
            self._abandon = None
            self.abandoned += 1
            self._number += 1
            self._say(StepReport(self.name, StepNumber(self._number), self._version, abandoned=True))
        left: list[RequestId] = []
        parked: list[Parked] = []
        plan = None
        if not begun:
            plan, self._mailbox = self._mailbox, None
        if plan is not None and plan.epoch == self._epoch:
            before = self._version
            self._apply(plan, left, parked)
            self._share_prefixes()
            if not self._ready and self._version != before:
                number = StepNumber(self._number)
                self._report(StepReport(self.name, number, self._version, left=tuple(left), parked=tuple(parked)))
        if self._ready:
            self._compute(left, parked)

    @property
    def _ready(self) -> bool:
        return any(row.ready for row in self.rows.values())

    def fail(self, *, down: bool = False) -> None:
        """Lose the context, and for good if `down`."""
        self._epoch += 1
        self._abandon = None
        self.rows.clear()
        self.cells.clear()
        self._say(LaneFailed(self.name, self._epoch, DecodeError(-3), down))

    def reopen(self) -> None:
        """Get a new context."""
        self._say(LaneReady(self.name))

    def _apply(self, plan: StepPlan, left: list[RequestId], parked: list[Parked]) -> None:
        assert [edit.version for edit in plan.edits] == sorted(edit.version for edit in plan.edits)
        fresh = [edit.change for edit in plan.edits if edit.version > self._version]
        self._version = plan.version
        self._prefill_tokens = plan.prefill_tokens
        self._share = plan.share
        for change in fresh:
            match change:
                case Join():
                    self._join(change)
                case Leave():
                    self._leave(change)
                    left.append(change.request)
                case Park():
                    parked.append(self._park(change))
                case Grant(request, cells):
                    if request in self.rows:
                        self.rows[request].cells = cells
                case Rank(request, level, urgency):
                    if request in self.rows:
                        self.rows[request].join = replace(self.rows[request].join, level=level, urgency=urgency)
                case Trim(sequence, keep):
                    self._check_unused(sequence)
                    if sequence in self.cells:
                        self._keep(sequence, keep)
                case Move(sequence, to):
                    self._check_unused(sequence)
                    self._check_unused(to)
                    assert self.shares
                    assert not self.cells.get(to), "cells would be lost"
                    self.cells[to] = self.cells.pop(sequence)
                case Merge(sequence, source, start, end):
                    assert self.shares
                    if min(len(self.cells.get(one, ())) for one in (sequence, source)) < end:
                        assert not self.swap_works, "only what could not be put back is missing"
                        continue
                    assert start < end
                    assert self.tokens(sequence)[start:end] == self.tokens(source)[start:end]
                    self.cells[sequence][start:end] = self.cells[source][start:end]
                case Stow(ticket, sequence, keep):
                    self._check_unused(sequence)
                    held = self.tokens(sequence)
                    what = SavedCells(saved(held), len(held)) if held else None
                    self._stowed.append(Stowed(ticket, what, 0.001 * len(held)))
                    self.stowed_tokens += len(held)
                    self._keep(sequence, keep)
                case Restore(ticket, sequence, read, length):
                    self._check_unused(sequence)
                    assert not self.cells.get(sequence), "cells would be lost"
                    data = read() if self.swap_works else None
                    self._restored.append(Restored(ticket, data is not None, len(data or ())))
                    if data is not None:
                        self.cells[sequence] = [Cell(ord(letter)) for letter in data.decode()][:length]
                        self.restored_tokens += length

    def tokens(self, sequence: SequenceId) -> list[int]:
        """Return what a sequence's cells hold."""
        return [cell.token for cell in self.cells.get(sequence, [])]

    def _check_unused(self, sequence: SequenceId) -> None:
        assert sequence not in [row.join.sequence for row in self.rows.values()], "a row loses its cells"

    def _join(self, join: Join) -> None:
        assert join.request not in self.rows, "a request joins twice"
        assert join.sequence not in [row.join.sequence for row in self.rows.values()], "two rows share a sequence"
        assert join.max_tokens >= 1
        assert len(join.tokens) + join.max_tokens <= self._limit, "more cells than a sequence has"
        cells = self.cells.setdefault(join.sequence, [])
        assert join.cached < len(join.tokens), "nothing is left to compute"
        if join.saved is not None:
            held = list(join.tokens[: join.saved.length])
            assert join.saved.data == saved(held), "something else was saved"
            cells[:] = map(Cell, held) if self.swap_works else []
        elif join.share is not None:
            cells.clear()
        else:
            if len(cells) < join.cached:
                assert not self.swap_works, "the cells are not there"
                self._copied.append(Copied(join.request, 0))
                cells.clear()
                self.wasted_joins += 1
            else:
                held = self.tokens(join.sequence)[: join.cached]
                assert held == list(join.tokens[: join.cached]), "the cells hold something else"
                self._keep(join.sequence, join.cached)
                self.wasted_joins += len(cells) < join.cached
        row = ScriptedRow(join, list(join.tokens), len(cells), join.cells, next(self._turns))
        row.awaits = join.share
        self.rows[join.request] = row
        self._share_prefixes()
        self._check_room()

    def _share_prefixes(self) -> None:
        """Copy what is there by now."""
        for row in self.rows.values():
            if row.awaits is None:
                continue
            leader = self.rows.get(row.awaits.leader) if row.awaits.leader is not None else None
            if leader is None or (leader.awaits is None and leader.computed >= row.awaits.length):
                self._copy(row)

    def _copy(self, row: ScriptedRow) -> None:
        share, row.awaits = row.awaits, None
        assert share is not None
        source = self.cells.get(share.sequence, [])[: share.length]
        assert share.leader is not None or len(source) == share.length or not self.swap_works, "the cells are not there"
        assert [cell.token for cell in source] == row.tokens[: len(source)], "somebody else's cells"
        self.cells[row.join.sequence][:] = source if self.shares else [Cell(cell.token) for cell in source]
        row.computed = len(source)
        self.shared_tokens += len(source)
        self._copied.append(Copied(row.join.request, len(source)))

    def _take_out(self, row: ScriptedRow) -> None:
        """Remove a row; of those that wait for it, the one that waits for most goes on with what is there."""
        del self.rows[row.join.request]
        waiting = [one for one in self.rows.values() if one.awaits and one.awaits.leader == row.join.request]
        waiting.sort(key=lambda one: one.awaits.length if one.awaits else 0)
        if not waiting:
            return
        heir = waiting.pop()
        for one in waiting:
            assert one.awaits is not None
            one.awaits = SharedPrefix(heir.join.sequence, one.awaits.length, heir.join.request)
        assert heir.awaits is not None
        if row.awaits is not None:
            heir.awaits = replace(row.awaits, length=min(row.awaits.length, heir.awaits.length))
        else:
            self._copy(heir)
        self._share_prefixes()

    def _leave(self, leave: Leave) -> None:
        row = self.rows.get(leave.request)
        if row is not None:
            there = leave.keep <= row.computed
            assert there or not self.swap_works, "cells that were neither computed nor put back cannot be kept"
            self._take_out(row)
            self._keep(row.join.sequence, leave.keep if there else 0)

    def _park(self, park: Park) -> Parked:
        row = self.rows.get(park.request)
        assert row is None or row.join.sequence == park.sequence
        if row is not None:
            self._take_out(row)
        held = self.tokens(park.sequence)
        if park.how is Parking.PAUSE:
            return Parked(park.request, len(held))
        self.cells.pop(park.sequence, None)
        cells = SavedCells(saved(held), len(held)) if park.how is Parking.SWAP and held else None
        return Parked(park.request, len(held), cells, 0.001 * len(held))

    def _keep(self, sequence: SequenceId, count: int) -> None:
        cells = self.cells[sequence]
        if self._can_roll_back or count == len(cells):
            del cells[count:]
        else:
            cells.clear()

    def _check_room(self) -> None:
        used = {cell for cells in self.cells.values() for cell in cells}
        # What could not be put back is computed by each who counted on it: a real lane might have to begin anew.
        assert len(used) <= self._room or not self.swap_works, "the lane has run out of cells"

    def _take_part(self, decoding: list[ScriptedRow], prompts: list[ScriptedRow]) -> list[ScriptedRow]:
        best = min((row.join.level for row in prompts), default=LEAST_URGENT)
        part = [row for row in decoding if row.join.level <= best or row.sat_out]
        if self._share is not None:
            protected = self._share.protected
            others = [row for row in part if row.join.level > protected]
            others.sort(key=lambda row: (not (row.join.sheltered and row.sat_out), row.turn))
            due = sum(row.join.sheltered and row.sat_out > 0 for row in others)
            part = [row for row in part if row.join.level <= protected] + others[: max(due, self._share.others)]
        if not part and not prompts:
            part = decoding
        for row in decoding:
            row.sat_out = 0 if row in part else row.sat_out + 1
        for row in part:
            row.turn = next(self._turns)
        return part

    def _compute(self, left: list[RequestId], parked: list[Parked]) -> None:
        ready = [row for row in self.rows.values() if row.ready]
        prompts = [row for row in ready if len(row.tokens) - row.computed > 1]
        prompts.sort(key=lambda row: row.join.urgency)
        part = self._take_part([row for row in ready if row not in prompts], prompts)
        budget = min(max(self._prefill_tokens, 1), self.max_step_tokens - len(part))
        outputs: list[RowOutput] = []
        started: list[RequestId] = []
        computing: list[ScriptedRow] = []
        computed = 0
        for row in [*part, *prompts]:
            count = 1 if row in part else min(budget - computed, row.ready)
            if count == 0:
                break
            if row in prompts:
                computing.append(row)
                computed += count
            if not row.started:
                started.append(row.join.request)
            row.started = True
            self._advance(row, count, outputs)
            more = 0 if prompts else self._at_once - 1
            while more and row.ready and row.join.request in self.rows:
                self._advance(row, 1, outputs)
                more -= 1
        self._number += 1
        self._check_room()
        self._report(
            StepReport(
                self.name,
                StepNumber(self._number),
                self._version,
                left=tuple(left),
                parked=tuple(parked),
                started=tuple(started),
                outputs=tuple(outputs),
                prompts=tuple(PromptProgress(row.join.request, row.computed) for row in computing),
                decode_rows=len(part),
                prefill_tokens=computed,
                drafted_tokens=len(outputs) - len(part) if not prompts else 0,
                accepted_tokens=len(outputs) - len(part) if not prompts else 0,
                times=StepTimes(begin=0.0, decode=self._step_seconds(len(part), computed), sample=0.0, idle=0.0),
            )
        )

    def _advance(self, row: ScriptedRow, count: int, outputs: list[RowOutput]) -> None:
        self.cells[row.join.sequence] += map(Cell, row.tokens[row.computed : row.computed + count])
        row.computed += count
        assert len(self.cells[row.join.sequence]) == row.computed <= self._limit
        assert row.cells is None or row.computed <= row.cells, "more cells than were granted"
        if row.computed < len(row.tokens):
            return
        self._share_prefixes()  # before its cells can change hands
        output = self._choose(row)
        outputs.append(output)
        if output.ended:
            self._take_out(row)

    def _choose(self, row: ScriptedRow) -> RowOutput:
        if row.join.request in self.broken:
            return RowOutput(row.join.request, -1, error=LlamalaneError("no token can be chosen"))
        token = self._speak(row.tokens)
        row.tokens.append(token)
        row.chosen += 1
        if token == END:
            return RowOutput(row.join.request, token, FinishReason.STOP)
        return RowOutput(row.join.request, token, FinishReason.LENGTH if row.chosen == row.join.max_tokens else None)

    def _report(self, report: StepReport) -> None:
        copied, stowed, restored = tuple(self._copied), tuple(self._stowed), tuple(self._restored)
        report = replace(report, copied=copied, stowed=stowed, restored=restored)
        for told in (self._copied, self._stowed, self._restored):
            told.clear()
        if report.times is not None:
            self.steps.append(report)
        self._say(report)

    def _say(self, message: LaneMessage) -> None:
        assert self._receiver is not None
        self._receiver(message)


def saved(tokens: Sequence[int]) -> bytearray:
    """Return what is saved of cells that hold these tokens."""
    return bytearray("".join(map(chr, tokens)).encode())

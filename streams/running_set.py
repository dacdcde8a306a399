"""The requests that a lane is computing, and what each has still to do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from llamalane.ids import PlanVersion, RequestId, SequenceId
from llamalane.streams.llama.batch import Batch
from llamalane.streams.llama.sampler import Sampler
from llamalane.streams.steps import (
    Edit,
    Grant,
    Join,
    Leave,
    Park,
    Parked,
    Parking,
    SavedCells,
    SharedPrefix,
    StepPlan,
    StepShare,
    Trim,
)


@dataclass(slots=True, eq=False)
class Row:
    """One sequence: `tokens` up to `computed` are in its cells, the rest is to be computed.

    `sat_out` counts the steps in a row in which it had no part; of two rows, the one with the smaller `turn` had its
    last part earlier. `cells` is how many it may fill, None for all.
    """

    join: Join
    sampler: Sampler
    tokens: list[int]
    computed: int
    cells: int | None
    turn: int
    chosen: int = 0
    started: bool = False
    sat_out: int = 0
    awaits: SharedPrefix | None = None
    """A prefix that another row is computing for it."""

    @property
    def decoding(self) -> bool:
        """Whether a single token is to be computed."""
        return len(self.tokens) - self.computed == 1

    @property
    def ready(self) -> int:
        """How many tokens can be computed: those that there are, and for which it has cells."""
        if self.awaits is not None:
            return 0
        end = len(self.tokens) if self.cells is None else min(len(self.tokens), self.cells)
        return max(0, end - self.computed)


class Cells(Protocol):
    """What the running set asks of the lane's context."""

    def remove(self, sequence: SequenceId, start: int = 0) -> bool:  # noqa: D102
        ...

    def length(self, sequence: SequenceId) -> int:  # noqa: D102
        ...

    def copy(self, source: SequenceId, target: SequenceId, length: int) -> None:  # noqa: D102
        ...

    def save(self, sequence: SequenceId) -> bytearray:  # noqa: D102
        ...

    def restore(self, sequence: SequenceId, data: bytearray) -> bool:  # noqa: D102
        ...


@dataclass(slots=True)
class Edited:
    """What a plan's edits did: who left, who was taken off to go on later, and who has no prefix to share."""

    left: list[RequestId] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)
    unshared: list[RequestId] = field(default_factory=list)

    def extend(self, later: Edited) -> None:
        """Add what later edits did."""
        self.left += later.left
        self.parked += later.parked
        self.unshared += later.unshared


@dataclass(slots=True)
class Work:
    """What one step computes: rows whose logits are wanted, in the batch's order, and all rows with their counts.

    `started` are requests that have their first part in it. Of the rows that could decode, `decoding` have a part, in
    the order of their turns, and `sitting_out` have none.
    """

    outputs: list[Row] = field(default_factory=list)
    computed: list[tuple[Row, int]] = field(default_factory=list)
    prefill_tokens: int = 0
    started: list[RequestId] = field(default_factory=list)
    decoding: list[Row] = field(default_factory=list)
    sitting_out: list[Row] = field(default_factory=list)

    @property
    def decode_rows(self) -> int:
        """How many rows decode."""
        return len(self.decoding)

    @property
    def rows(self) -> Iterator[Row]:
        """The rows that have a part in the step."""
        return (row for row, _ in self.computed)


class RunningSet:
    """The rows of one lane, edited by plans. Owned by the lane's thread.

    With `by_sequence` a batch is laid out in the order of sequence ids, decoding rows and prompts alike.
    """

    def __init__(self, make_sampler: Callable[[Join], Sampler], *, by_sequence: bool = False) -> None:
        self._make_sampler = make_sampler
        self._by_sequence = by_sequence
        self._rows: dict[RequestId, Row] = {}
        self._turns = itertools.count()
        self.version = PlanVersion(0)
        self.prefill_tokens = 0
        self.share: StepShare | None = None
        self.successors = False

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    @property
    def ready(self) -> bool:
        """Whether any row can go on without another plan."""
        return any(row.ready for row in self._rows.values())

    def apply(self, plan: StepPlan, cells: Cells) -> Edited:
        """Carry out the edits of `plan` that are new."""
        edited = Edited()
        for edit in plan.edits:
            if edit.version > self.version:
                self._carry_out(edit, cells, edited)
        self.version = plan.version
        self.prefill_tokens = plan.prefill_tokens
        self.share = plan.share
        self.successors = plan.successors
        return edited

    def share_prefixes(self, cells: Cells) -> list[RequestId]:
        """Copy the prefixes that are there by now, and return the requests whose prefix will never be."""
        unshared = []
        for row in self._rows.values():
            if row.awaits is None:
                continue
            leader = self._rows.get(row.awaits.leader) if row.awaits.leader is not None else None
            if leader is None:
                row.awaits = None
                unshared.append(row.join.request)
            elif leader.computed >= row.awaits.length:
                row.computed = _copy(cells, row.awaits, row.join.sequence)
                row.awaits = None
        return unshared

    def fill(self, batch: Batch) -> Work:
        """Fill `batch` with the next step: decoding rows, then prompts by urgency within the budget.

        No row changes until the step is computed, and `advance` told of it.
        """
        ready = [row for row in self._rows.values() if row.ready]
        decoding = [row for row in ready if row.decoding]
        prompts = [row for row in ready if not row.decoding]
        part = self._take_part(decoding, prompts)
        chosen = [(row, 1) for row in part]
        budget = min(max(self.prefill_tokens, 1), batch.capacity - len(chosen))
        work = Work(decoding=part, sitting_out=list(set(decoding).difference(part)))
        for row in sorted(prompts, key=lambda row: row.join.urgency):
            count = min(row.ready, budget)
            if count == 0:
                break
            chosen.append((row, count))
            budget -= count
            work.prefill_tokens += count
        if self._by_sequence:
            chosen.sort(key=lambda part: part[0].join.sequence)
        batch.clear()
        for row, count in chosen:
            self._add(batch, work, row, count)
        return work

    def advance(self, work: Work) -> None:
        """Note that a step was computed."""
        for row in work.sitting_out:
            row.sat_out += 1
        for row in work.decoding:
            row.turn = next(self._turns)
        for row, count in work.computed:
            row.computed += count
            row.started = True
            row.sat_out = 0

    def retire(self, row: Row) -> None:
        """Take out a row that has ended; its cells stay until its sequence is given away."""
        del self._rows[row.join.request]
        row.sampler.close()

    def clear(self) -> None:
        """Drop every row."""
        for row in list(self._rows.values()):
            self.retire(row)

    def _take_part(self, decoding: list[Row], prompts: list[Row]) -> list[Row]:
        """Return the decoding rows that have a part in the next step.

        Rows less urgent than a prompt that is to be computed sit out every second step, so that the prompt's step is
        short and they go on all the same. Of rows less urgent than the plan's share protects, only some have a part.
        """
        best = min((row.join.level for row in prompts), default=None)
        part = [row for row in decoding if best is None or row.join.level <= best or row.sat_out]
        if self.share is not None:
            part = self._within_share(part, self.share)
        return part if part or prompts else decoding

    @staticmethod
    def _within_share(part: list[Row], share: StepShare) -> list[Row]:
        others = [row for row in part if row.join.level > share.protected]
        overdue = [row for row in others if row.join.sheltered and row.sat_out]
        rest = sorted((row for row in others if row not in overdue), key=lambda row: row.turn)
        protected = [row for row in part if row.join.level <= share.protected]
        return [*protected, *overdue, *rest[: max(0, share.others - len(overdue))]]

    @staticmethod
    def _add(batch: Batch, work: Work, row: Row, count: int) -> None:
        end = row.computed + count
        output = end == len(row.tokens)
        batch.add(row.join.sequence, row.tokens[row.computed : end], row.computed, output=output)
        work.computed.append((row, count))
        if output:
            work.outputs.append(row)
        if not row.started:
            work.started.append(row.join.request)

    def _carry_out(self, edit: Edit, cells: Cells, edited: Edited) -> None:
        match edit.change:
            case Join() as join:
                if not self._join(join, cells):
                    edited.unshared.append(join.request)
            case Leave(request, keep):
                row = self._rows.get(request)
                if row is not None:  # else it has ended by itself in the meantime
                    self.retire(row)
                    _trim(cells, row.join.sequence, keep)
                edited.left.append(request)
            case Park() as park:
                edited.parked.append(self._park(park, cells))
            case Grant(request, count):
                if request in self._rows:
                    self._rows[request].cells = count
            case Trim(sequence, keep):
                _trim(cells, sequence, keep)

    def _join(self, join: Join, cells: Cells) -> bool:
        """Add a row; returns False when it was to share a prefix that is not there."""
        awaits, share = None, join.share
        if join.saved is not None:
            computed = join.saved.length if cells.restore(join.sequence, join.saved.data) else 0
        elif share is None:
            computed = _trim(cells, join.sequence, join.cached)
        else:
            cells.remove(join.sequence)
            leader = self._rows.get(share.leader) if share.leader is not None else None
            if leader is not None and leader.computed < share.length:
                awaits, computed = share, 0
            else:
                computed = _copy(cells, share, join.sequence)
        sampler, turn = self._make_sampler(join), next(self._turns)
        row = Row(join, sampler, list(join.tokens), computed, join.cells, turn, awaits=awaits)
        self._rows[join.request] = row
        return share is None or awaits is not None or computed > 0

    def _park(self, park: Park, cells: Cells) -> Parked:
        row = self._rows.get(park.request)
        if row is not None:
            self.retire(row)
        computed = cells.length(park.sequence) if row is None else row.computed
        if park.how is Parking.PAUSE:
            return Parked(park.request, computed)
        begin = time.monotonic()
        saved = SavedCells(cells.save(park.sequence), computed) if park.how is Parking.SWAP and computed else None
        cells.remove(park.sequence)
        return Parked(park.request, computed, saved, time.monotonic() - begin)


def _copy(cells: Cells, share: SharedPrefix, target: SequenceId) -> int:
    """Copy a prefix that is there; returns how many cells were."""
    if cells.length(share.sequence) < share.length:
        return 0
    cells.copy(share.sequence, target, share.length)
    return share.length


def _trim(cells: Cells, sequence: SequenceId, keep: int) -> int:
    """Remove all but the first `keep` cells of a sequence, or all where that cannot be; returns how many are left."""
    if cells.remove(sequence, keep):
        return keep
    cells.remove(sequence)
    return 0

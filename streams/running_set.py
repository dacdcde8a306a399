"""The requests that a lane is computing, and what each has still to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from llamalane.ids import PlanVersion, RequestId, SequenceId
from llamalane.streams.llama.batch import Batch
from llamalane.streams.llama.sampler import Sampler
from llamalane.streams.steps import Join, Leave, StepPlan


@dataclass(slots=True, eq=False)
class Row:
    """One sequence: `tokens` up to `computed` are in its cells, the rest is to be computed."""

    join: Join
    sampler: Sampler
    tokens: list[int]
    computed: int
    chosen: int = 0
    started: bool = False
    sat_out: bool = False
    """Whether it sat out the last step."""

    @property
    def decoding(self) -> bool:
        """Whether only the token chosen last is to be computed."""
        return self.chosen > 0

    @property
    def waiting(self) -> int:
        """How many tokens are to be computed."""
        return len(self.tokens) - self.computed


class Cells(Protocol):
    """What the running set asks of the lane's context."""

    def remove(self, sequence: SequenceId, start: int = 0) -> bool:  # noqa: D102
        ...


@dataclass(slots=True)
class Work:
    """What one step computes: rows whose logits are wanted, in the batch's order, and all rows with their counts."""

    outputs: list[Row]
    computed: list[tuple[Row, int]]
    decode_rows: int
    prefill_tokens: int
    started: tuple[RequestId, ...]


class RunningSet:
    """The rows of one lane, edited by plans. Owned by the lane's thread."""

    def __init__(self, make_sampler: Callable[[Join], Sampler]) -> None:
        self._make_sampler = make_sampler
        self._rows: dict[RequestId, Row] = {}
        self.version = PlanVersion(0)
        self.prefill_tokens = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def apply(self, plan: StepPlan, cells: Cells) -> tuple[RequestId, ...]:
        """Carry out the edits of `plan` that are new, and return the requests that left by one."""
        left = []
        for edit in plan.edits:
            if edit.version <= self.version:
                continue
            if isinstance(edit.change, Join):
                self._join(edit.change, cells)
            else:
                self._leave(edit.change, cells)
                left.append(edit.change.request)
        self.version = plan.version
        self.prefill_tokens = plan.prefill_tokens
        return tuple(left)

    def fill(self, batch: Batch) -> Work:
        """Fill `batch` with the next step: decoding rows first, then prompts by urgency within the budget.

        Every row decodes in every step, but for those less urgent than a prompt that is to be computed: they sit out
        every second one, so that the prompt's step is short and they go on all the same.
        """
        batch.clear()
        work = Work([], [], 0, 0, ())
        prompts = [row for row in self._rows.values() if not row.decoding]
        best = min((row.join.level for row in prompts), default=None)
        for row in self._rows.values():
            if not row.decoding:
                continue
            row.sat_out = best is not None and best < row.join.level and not row.sat_out
            if not row.sat_out:
                self._add(batch, work, row, 1)
                work.decode_rows += 1
        budget = min(max(self.prefill_tokens, 1), batch.capacity - batch.size)
        started = []
        for row in sorted(prompts, key=lambda row: row.join.urgency):
            count = min(row.waiting, budget)
            if count == 0:
                break
            self._add(batch, work, row, count)
            budget -= count
            work.prefill_tokens += count
            if not row.started:
                row.started = True
                started.append(row.join.request)
        work.started = tuple(started)
        return work

    def retire(self, row: Row) -> None:
        """Take out a row that has ended; its cells stay until its sequence is given away."""
        del self._rows[row.join.request]
        row.sampler.close()

    def clear(self) -> None:
        """Drop every row."""
        for row in list(self._rows.values()):
            self.retire(row)

    @staticmethod
    def _add(batch: Batch, work: Work, row: Row, count: int) -> None:
        end = row.computed + count
        output = end == len(row.tokens)
        batch.add(row.join.sequence, row.tokens[row.computed : end], row.computed, output=output)
        work.computed.append((row, count))
        if output:
            work.outputs.append(row)

    def _join(self, join: Join, cells: Cells) -> None:
        computed = _trim(cells, join.sequence, join.cached)
        self._rows[join.request] = Row(join, self._make_sampler(join), list(join.tokens), computed)

    def _leave(self, leave: Leave, cells: Cells) -> None:
        row = self._rows.get(leave.request)
        if row is None:  # it ended by itself in the meantime
            return
        self.retire(row)
        _trim(cells, row.join.sequence, leave.keep)


def _trim(cells: Cells, sequence: SequenceId, keep: int) -> int:
    """Remove all but the first `keep` cells of a sequence, or all where that cannot be; returns how many are left."""
    if cells.remove(sequence, keep):
        return keep
    cells.remove(sequence)
    return 0

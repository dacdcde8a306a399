"""A running set between a batch and fakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from llamalane.ids import RequestId
from llamalane.streams import ContextShift, Join, StepPlan
from llamalane.streams.drafts import DraftOptions, take_back
from llamalane.streams.llama import Batch, Sampler
from llamalane.streams.row import Row
from llamalane.streams.running_set import News, RunningSet, Work
from tests.streams.fakes import FakeCells, FakeSampler


@dataclass
class Rig:
    """A running set between a batch and fakes."""

    rows: RunningSet
    samplers: dict[RequestId, FakeSampler]
    cells: FakeCells
    batch: Batch

    def row(self, request: str) -> Row:
        (row,) = (row for row in self.rows if row.join.request == request)
        return row

    def apply(self, plan: StepPlan) -> News:
        """Carry out a plan's edits, and return what is told of them."""
        self.rows.apply(plan, self.cells)
        return self.rows.take_news()

    def requests(self) -> list[str]:
        return [row.join.request for row in self.rows]

    def step(self, token: int = 7) -> Work:
        """Do what a lane does in a step, choosing `token` for every row whose logits are wanted, and no draft."""
        self.rows.shift(self.cells)
        work = self.rows.fill(self.batch)
        self.rows.advance(work)
        for row in work.outputs:
            row.chosen += 1
            row.tokens.append(token)
            take_back(row, self.cells)
        return work


def rig(
    capacity: int = 16,
    *,
    can_roll_back: bool = True,
    by_sequence: bool = False,
    shift: ContextShift | None = None,
    output_rows: int = 0,
    drafting: DraftOptions | None = None,
) -> Rig:
    samplers: dict[RequestId, FakeSampler] = {}

    def make_sampler(change: Join) -> Sampler:
        samplers[change.request] = FakeSampler()
        return cast(Sampler, samplers[change.request])

    rows = RunningSet(make_sampler, by_sequence=by_sequence, shift=shift, output_rows=output_rows, drafting=drafting)
    return Rig(rows, samplers, FakeCells(can_roll_back=can_roll_back), Batch(capacity))


def in_batch(batch: Batch) -> list[tuple[int, int, int, bool]]:
    """What llama.cpp will see: sequence, position, token, and whether logits are wanted."""
    struct = batch.struct
    return [
        (struct.seq_id[i][0], struct.pos[i], struct.token[i], bool(struct.logits[i])) for i in range(struct.n_tokens)
    ]


def parts(work: Work) -> dict[str, int]:
    """How many tokens of each request a step computes."""
    return {row.join.request: count for row, count in work.computed}

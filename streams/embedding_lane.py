"""A lane that embeds: it computes whole texts, several in a step, and reports a vector or scores for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from llamalane.errors import RequestFailedError, StepAbandonedError
from llamalane.ids import SequenceId, StepNumber
from llamalane.streams.embedding_rows import EmbeddingRow, EmbeddingRows
from llamalane.streams.gate import Gate
from llamalane.streams.lane_thread import LaneContext, LaneThread
from llamalane.streams.llama.batch import Batch
from llamalane.streams.llama.embedding_context import Vector
from llamalane.streams.steps import FinishReason, RowOutput, StepReport, StepTimes
from llamalane.streams.stream import Stream


class EmbeddingStepContext(LaneContext, Protocol):
    """What such a lane asks of its context; `llamalane.streams.llama.EmbeddingContext` is one."""

    def embed(self, batch: Batch) -> list[Vector]:  # noqa: D102
        ...


class EmbeddingLane(LaneThread[EmbeddingStepContext]):
    """Embeds texts on its own thread, without ever waiting for whoever plans.

    It carries out the same plans as other lanes do, as far as they are about rows and not about cells. The arguments
    are those of `Lane`.
    """

    def __init__(
        self,
        stream: Stream,
        open_context: Callable[[], EmbeddingStepContext],
        *,
        max_step_tokens: int,
        gate: Gate,
        can_abandon: bool = False,
    ) -> None:
        self.max_step_tokens = max_step_tokens
        self._rows = EmbeddingRows()
        self._batch = Batch(max_step_tokens)
        super().__init__(stream, open_context, gate=gate, can_abandon=can_abandon)

    def _try_out(self, context: EmbeddingStepContext) -> None:
        """Embed a text of one token, which warms the context up."""
        self._batch.clear()
        self._batch.add_text(SequenceId(0), [0])
        context.embed(self._batch)

    def _can_abandon(self) -> bool:
        return True

    def _drop_rows(self) -> None:
        self._rows.clear()

    def _run(self, context: EmbeddingStepContext) -> None:
        while not self._mailbox.closed:
            if not self._rows:  # it sleeps: that is not idleness
                self._step_end = None
            self._take_plan()
            if self._rows:
                self._say(self._compute(context))

    def _take_plan(self) -> None:
        """Take the plan that is there, or the next one while there is nothing to do."""
        plan = self._mailbox.take(0.0 if self._rows else None)
        if plan is not None and plan.epoch == self._epoch:
            before = self._rows.version
            self._rows.apply(plan)
            if not self._rows and self._rows.version != before:
                self._say(self._report())

    def _compute(self, context: EmbeddingStepContext) -> StepReport:
        rows = self._rows.fill(self._batch)
        number = self._step + 1
        with self._gate.shared():
            timer = self._timer()
            try:
                with self._brake.armed(number, context):
                    vectors = context.embed(self._batch)
            except StepAbandonedError:
                self._step, self._step_end = number, time.monotonic()
                return self._report(abandoned=True)
            timer.stop()
        self._adapt(timer, context)
        idle = timer.begin - self._step_end if self._step_end is not None else 0.0
        self._step_end = timer.end
        self._step = number
        self._failures = 0
        self._rows.advance(rows)
        outputs = [_output(row, vector) for row, vector in zip(rows, vectors, strict=True)]
        return self._report(rows, outputs, StepTimes(timer.begin, timer.wall, 0.0, idle, timer.threads))

    def _report(
        self,
        rows: Sequence[EmbeddingRow] = (),
        outputs: Sequence[RowOutput] = (),
        times: StepTimes | None = None,
        *,
        abandoned: bool = False,
    ) -> StepReport:
        left, parked = self._rows.take_news()
        return StepReport(
            self.name,
            StepNumber(self._step),
            self._rows.version,
            left=left,
            parked=parked,
            started=tuple(row.join.request for row in rows),
            outputs=tuple(outputs),
            prefill_tokens=sum(len(row.join.tokens) for row in rows),
            times=times,
            abandoned=abandoned,
        )


def _output(row: EmbeddingRow, vector: Vector) -> RowOutput:
    if not np.isfinite(vector).all():
        failed = RequestFailedError("the text has no vector: the model's numbers are not finite")
        return RowOutput(row.join.request, -1, error=failed)
    return RowOutput(row.join.request, -1, FinishReason.STOP, vector=vector)

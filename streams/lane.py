"""A lane: a stream, a KV region, a llama context, and the one thread that creates, uses and frees that context."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llamalane.errors import LlamalaneError, RequestFailedError, StepAbandonedError
from llamalane.ids import StepNumber
from llamalane.streams.cells import MovableCells, trim
from llamalane.streams.drafts import DraftOptions, take_back
from llamalane.streams.gate import Gate
from llamalane.streams.lane_thread import LaneContext, LaneThread
from llamalane.streams.llama.abilities import Abilities
from llamalane.streams.llama.batch import Batch
from llamalane.streams.llama.candidates import Candidates
from llamalane.streams.llama.grammar import Follower
from llamalane.streams.llama.sampler import Sampler
from llamalane.streams.llama.vocabulary import Vocabulary
from llamalane.streams.logprobs import log_softmax, scores_of
from llamalane.streams.mailbox import Mailbox
from llamalane.streams.measuring import measure
from llamalane.streams.parts import Gap
from llamalane.streams.row import Row
from llamalane.streams.running_set import RunningSet, Work
from llamalane.streams.shift import ContextShift
from llamalane.streams.steps import (
    FinishReason,
    Join,
    PromptProgress,
    PromptScores,
    RowOutput,
    StepReport,
    StepTimes,
)
from llamalane.streams.stream import Stream

HANDOVER = 0.002
"""So many seconds at most does a lane wait for the successor of a row that has ended: whoever plans may be busy."""

PLANNING = 0.001
"""Planning keeps the interpreter for about so many seconds, and a lane that has begun to wait cannot go on before."""


class StepContext(MovableCells, LaneContext, Protocol):
    """What a lane asks of its context; `llamalane.streams.llama.Context` is one."""

    def probe(self) -> Abilities:  # noqa: D102
        ...

    def decode(self, batch: Batch) -> None:  # noqa: D102
        ...

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:  # noqa: D102
        ...


class Lane(LaneThread[StepContext]):
    """Runs steps on its own thread, without ever waiting for whoever plans them.

    `open_context` makes the lane's context, on the lane's thread; it is called again after the context has failed.
    The constructor returns when the first one is there, and raises what it raised. `by_sequence` lays out steps in the
    order of sequence ids. `can_abandon` lets steps be broken off, where the context can take that: they should be
    computed on the CPU. `shift` tells how sequences go on that are full, for contexts that can move cells.
    `output_rows` is for how many tokens the context can give logits in one step. `drafting` tells how rows draft
    tokens, for contexts that can drop the end of a sequence.
    """

    abilities: Abilities
    """What the lane's context can do."""

    def __init__(
        self,
        stream: Stream,
        vocabulary: Vocabulary,
        open_context: Callable[[], StepContext],
        *,
        max_step_tokens: int,
        limit: int,
        gate: Gate,
        by_sequence: bool = False,
        can_abandon: bool = False,
        shift: ContextShift | None = None,
        output_rows: int = 0,
        drafting: DraftOptions | None = None,
    ) -> None:
        self.max_step_tokens = max_step_tokens
        self._vocabulary = vocabulary
        self._limit = limit
        self._gate = gate
        self._mailbox = Mailbox()
        self._rows = RunningSet(
            self._make_sampler, by_sequence=by_sequence, shift=shift, output_rows=output_rows, drafting=drafting
        )
        self._batch = Batch(max_step_tokens)
        self._gap = Gap()
        self._candidates = Candidates(vocabulary.size)
        # Its one thread begins with the first grammar.
        self._helper = ThreadPoolExecutor(1, thread_name_prefix=f"llamalane-{stream.options.name}-grammar")
        super().__init__(stream, open_context, gate=gate, can_abandon=can_abandon)

    def _try_out(self, context: StepContext) -> None:
        self.abilities = context.probe()

    def _can_abandon(self) -> bool:
        return self.abilities.abandon

    def _drop_rows(self) -> None:
        self._rows.clear()

    def _finish(self) -> None:
        self._helper.shutdown()

    def _run(self, context: StepContext) -> None:
        """Carry out plans and steps until the mailbox is closed."""
        patience = 0.0
        self._gap.begin()
        while not self._mailbox.closed:
            if not self._rows:  # it sleeps: that is not idleness
                self._step_end = None
            self._take_plans(context, patience)
            patience = 0.0
            if self._rows.ready:
                report = self._compute(context)
                self._gap.begin()
                self._say(report)
                patience = patience_after(report) if self._rows.successors else 0.0

    def _take_plans(self, context: StepContext, patience: float) -> None:
        """Take the plan that is there, and wait for one while no row is ready.

        With `patience`, one is awaited for so many seconds that has heard of the last step. What there was no time for
        of earlier plans goes first.
        """
        if self._rows.busy:
            before = self._rows.version
            self._rows.carry_on(context, self._gap.has_time)
            if not self._rows.ready and self._rows.version != before:
                self._say(self._report(Work()))
                return
        awaited = patience > 0
        end = time.monotonic() + patience if awaited else 0.0
        while True:
            timeout = None if not self._rows.ready else max(0.0, end - time.monotonic()) if awaited else 0.0
            plan = self._mailbox.take(timeout)
            if plan is None:
                return
            if plan.epoch == self._epoch:
                before = self._rows.version
                self._rows.apply(plan, context, self._gap.has_time)
                if not self._rows.ready and self._rows.version != before:
                    self._say(self._report(Work()))
                    return
            if not awaited or plan.heard >= self._step:
                return

    def _compute(self, context: StepContext) -> StepReport:
        moved = self._rows.shift(context)
        work = self._rows.fill(self._batch)
        number = self._step + 1
        with self._gate.shared():
            timer = self._timer()
            try:
                with contextlib.nullcontext() if moved else self._brake.armed(number, context):
                    context.decode(self._batch)
            except StepAbandonedError:
                return self._roll_back(context, work)
            timer.stop()
            logits = context.logits(self._batch)
            self._rows.advance(work)
            self._rows.share_prefixes(context)
            prompt_scores, failed = measure(work.measured, logits)
            outputs = [self._fail(one.row, one.error, context) for one in failed]
            for row, place in zip(work.outputs, work.places, strict=True):
                if row not in self._rows:  # its prompt could not be measured
                    continue
                if row in work.drafts:
                    outputs.extend(self._choose_along(row, work, logits[place:], context))
                else:
                    outputs.append(self._choose(row, logits[place], context))
        self._adapt(timer, context)
        idle = timer.begin - self._step_end if self._step_end is not None else 0.0
        self._step_end = time.monotonic()
        self._step = number
        self._failures = 0
        self._gap.observe_step(self._step_end - timer.begin)
        times = StepTimes(timer.begin, timer.wall, self._step_end - timer.end, idle, timer.threads)
        return self._report(work, outputs, prompt_scores, times)

    def _roll_back(self, context: StepContext, work: Work) -> StepReport:
        """Undo what an abandoned step has computed.

        A sliding window may have moved on by then; such a row is computed again from its beginning.
        """
        for row in work.rows:
            row.computed = trim(context, row.join.sequence, row.computed)
        self._step += 1
        self._step_end = time.monotonic()
        return self._report(Work(), abandoned=True)

    def _report(
        self,
        work: Work,
        outputs: Sequence[RowOutput] = (),
        prompt_scores: Sequence[PromptScores] = (),
        times: StepTimes | None = None,
        *,
        abandoned: bool = False,
    ) -> StepReport:
        news = self._rows.take_news()
        return StepReport(
            self.name,
            StepNumber(self._step),
            self._rows.version,
            left=tuple(news.left),
            parked=tuple(news.parked),
            copied=tuple(news.copied),
            stowed=tuple(news.stowed),
            restored=tuple(news.restored),
            started=tuple(work.started),
            outputs=tuple(outputs),
            prompt_scores=tuple(prompt_scores),
            prompts=tuple(PromptProgress(row.join.request, row.computed) for row in work.prompts),
            decode_rows=work.decode_rows,
            prefill_tokens=work.prefill_tokens,
            drafted_tokens=work.drafted_tokens,
            accepted_tokens=work.accepted_tokens,
            times=times,
            abandoned=abandoned,
        )

    def _choose(self, row: Row, logits: npt.NDArray[np.float32], context: StepContext) -> RowOutput:
        """Choose a row's next token, and retire the row if it was the last."""
        count = row.join.sampling.logprobs
        try:
            logprobs = None if count is None else log_softmax(logits)  # before a grammar changes them
            token = row.sampler.choose(logits, row.join.generated + row.chosen, self._candidates)
        except Exception as error:  # one row's failure is that row's
            failed = error if isinstance(error, LlamalaneError) else RequestFailedError(f"sampling failed: {error}")
            return self._fail(row, failed, context)
        row.chosen += 1
        row.tokens.append(token)
        finish = None
        if token in self._vocabulary.end_of_generation or row.sampler.complete:
            finish = FinishReason.STOP
        elif row.chosen == row.join.max_tokens:
            finish = FinishReason.LENGTH
        if finish is not None:
            self._rows.retire(row, context)
        scores = None if logprobs is None or count is None else scores_of(logprobs, token, count)
        return RowOutput(row.join.request, token, finish, scores=scores)

    def _choose_along(
        self, row: Row, work: Work, logits: npt.NDArray[np.float32], context: StepContext
    ) -> list[RowOutput]:
        """Choose a row's next tokens, one after the other, as long as the one before is as it was drafted."""
        draft = work.drafts[row]
        outputs = [self._choose(row, logits[0], context)]
        for token, following in zip(draft, logits[1:], strict=False):
            if outputs[-1].ended or outputs[-1].token != token:
                break
            outputs.append(self._choose(row, following, context))
        take_back(row, context)
        accepted = len(outputs) - 1
        work.accepted_tokens += accepted
        assert row.drafter is not None
        row.drafter.note(len(draft), accepted)
        return outputs

    def _fail(self, row: Row, error: LlamalaneError, context: StepContext) -> RowOutput:
        self._rows.retire(row, context)
        return RowOutput(row.join.request, -1, error=error)

    def _make_sampler(self, join: Join) -> Sampler:
        return Sampler(
            self._vocabulary,
            join.sampling,
            choice=join.choice,
            history=join.tokens,
            window=self._limit,
            follower=None if join.following is None else Follower(join.following, self._helper),
        )


def patience_after(report: StepReport) -> float:
    """Return for how many seconds a plan is awaited that tells who follows the rows that have ended with a step.

    Longer than the next step would take for those rows it would cost the others more than it brings.
    """
    ended = sum(output.ended for output in report.outputs)
    if not ended or report.times is None:
        return 0.0
    gain = report.times.decode * ended / (len(report.outputs) - report.accepted_tokens)
    return min(HANDOVER, gain) if gain >= PLANNING else 0.0

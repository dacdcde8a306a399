"""A lane on its own thread, with a context that does as it is told and an inbox for what the lane says."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from llamalane.ids import SequenceId
from llamalane.streams import (
    CpuStream,
    FinishReason,
    LaneFailed,
    LaneMessage,
    LaneReady,
    RowOutput,
    SamplingParameters,
    StepReport,
)
from llamalane.streams.gate import Gate
from llamalane.streams.lane import Lane, StepContext
from llamalane.streams.llama import Batch, Context, ContextOptions, Model
from tests.streams.fakes import stream_options

TIMEOUT = 60.0
"""Seconds after which something that should have happened never will."""
OPTIONS = ContextOptions(cells=1024, sequences=4, max_step_tokens=64, micro_batch=64, threads=1)
LIMIT = OPTIONS.cells // OPTIONS.sequences
PROMPT = list(range(70, 90))
ENDLESS = SamplingParameters(temperature=0, seed=0, ignore_eos=True)
ROUNDING = 0.01


class Script:
    """What shall happen in the steps of all contexts that one lane opens, and what did happen.

    `before_step` is called in the lane's thread with the number of each step, before it is computed; what it raises
    is what the step fails with. `before_open` is the same for each context. `broken_rows` names steps whose first row
    of logits is not a number.
    """

    def __init__(
        self,
        before_step: Callable[[int], None] = lambda _: None,
        *,
        before_open: Callable[[int], None] = lambda _: None,
        broken_rows: Sequence[int] = (),
    ) -> None:
        self.before_step = before_step
        self.before_open = before_open
        self.broken_rows = broken_rows
        self.opened = 0
        self.refused = 0
        self.closed = 0
        self.steps = 0
        self.in_step = False
        self.threads: set[int] = set()


class ScriptedContext:
    """A llama context that follows a script."""

    def __init__(self, script: Script, inner: Context) -> None:
        self._script = script
        self._inner = inner
        self._closed = False

    def decode(self, batch: Batch) -> None:
        self._script.threads.add(threading.get_ident())
        self._script.steps += 1
        self._script.before_step(self._script.steps)
        self._script.in_step = True
        self._inner.decode(batch)
        self._script.in_step = False

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        logits = self._inner.logits(batch)
        if self._script.steps in self._script.broken_rows:
            logits = logits.copy()
            logits[0] = np.nan
        return logits

    def remove(self, sequence: SequenceId, start: int = 0) -> bool:
        return self._inner.remove(sequence, start)

    def close(self) -> None:
        self._script.threads.add(threading.get_ident())
        if not self._closed:
            self._closed = True
            self._script.closed += 1
        self._inner.close()


class Inbox:
    """Collects what a lane says."""

    def __init__(self) -> None:
        self._messages: queue.Queue[LaneMessage] = queue.Queue()

    def __call__(self, message: LaneMessage) -> None:
        self._messages.put(message)

    def next(self) -> LaneMessage:
        return self._messages.get(timeout=TIMEOUT)

    def report(self) -> StepReport:
        message = self.next()
        assert isinstance(message, StepReport), message
        return message

    def failure(self) -> LaneFailed:
        message = self.next()
        assert isinstance(message, LaneFailed), message
        return message

    def ready(self) -> None:
        message = self.next()
        assert isinstance(message, LaneReady), message

    def reports_until(self, *requests: str) -> list[StepReport]:
        """Return the reports up to the one with which the last of `requests` ends."""
        open_requests = set(requests)
        reports = []
        while open_requests:
            reports.append(self.report())
            open_requests -= {output.request for output in reports[-1].outputs if output.ended}
        return reports

    def empty(self) -> bool:
        return self._messages.empty()


def outputs_of(request: str, reports: Sequence[StepReport]) -> list[RowOutput]:
    return [output for report in reports for output in report.outputs if output.request == request]


def tokens_of(request: str, reports: Sequence[StepReport]) -> list[int]:
    return [output.token for output in outputs_of(request, reports)]


def finish_of(request: str, reports: Sequence[StepReport]) -> FinishReason | None:
    return outputs_of(request, reports)[-1].finish


def open_lane(
    model: Model,
    script: Script | None = None,
    *,
    name: str = "lane",
    gate: Gate | None = None,
    max_step_tokens: int = OPTIONS.max_step_tokens,
    cores: tuple[int, ...] = (),
) -> Lane:
    """Open a lane; whoever calls it closes the lane."""
    plays = script or Script()

    def open_context() -> StepContext:
        plays.threads.add(threading.get_ident())
        plays.opened += 1
        try:
            plays.before_open(plays.opened)
        except BaseException:
            plays.refused += 1
            raise
        return ScriptedContext(plays, Context(model, OPTIONS))

    stream = CpuStream(dataclasses.replace(stream_options(name), cores=cores))
    return Lane(
        stream, model.vocabulary, open_context, max_step_tokens=max_step_tokens, limit=LIMIT, gate=gate or Gate()
    )


def shortfall(model: Model, prompt: Sequence[int], output: Sequence[int]) -> float:
    """Return how far the worst of the chosen tokens was from being the likeliest.

    An undisturbed context is fed the prompt and then the output, token by token. Greedy choices fall short by
    rounding errors only.
    """
    context = Context(model, OPTIONS)
    batch = Batch(OPTIONS.max_step_tokens)
    sequence = SequenceId(0)
    worst = 0.0
    pending = list(prompt)
    for token in output:
        while pending:
            chunk, pending = pending[: batch.capacity], pending[batch.capacity :]
            batch.clear()
            batch.add(sequence, chunk, context.length(sequence), output=not pending)
            context.decode(batch)
        logits = context.logits(batch)[0]
        worst = max(worst, float(logits.max() - logits[token]))
        pending = [token]
    context.close()
    return worst

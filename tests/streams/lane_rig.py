"""A lane on its own thread, with a context that does as it is told and an inbox for what the lane says."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from llamalane.errors import StepAbandonedError
from llamalane.ids import SequenceId
from llamalane.streams import (
    ContextShift,
    CpuStream,
    Device,
    FinishReason,
    LaneFailed,
    LaneMessage,
    LaneReady,
    RowOutput,
    SamplingParameters,
    StepReport,
)
from llamalane.streams.drafts import DraftOptions
from llamalane.streams.gate import Gate
from llamalane.streams.lane import Lane, StepContext
from llamalane.streams.llama import Abilities, Batch, Context, ContextOptions, Model, uniform
from llamalane.streams.parts import Parts
from tests.streams.fakes import stream_options

TIMEOUT = 60.0
"""Seconds after which something that should have happened never will."""
OPTIONS = ContextOptions(cells=1024, sequences=4, max_step_tokens=64, micro_batch=64, threads=1)
LIMIT = OPTIONS.cells // OPTIONS.sequences
PROMPT = list(range(70, 90))
ENDLESS = SamplingParameters(temperature=0, seed=0, ignore_eos=True)
SEEDED = SamplingParameters(
    seed=5, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, presence_penalty=1.0, repeat_last_n=-1, ignore_eos=True
)
ROUNDING = 0.01
NO_TOKEN = -1


class Script:
    """What shall happen in the steps of all contexts that one lane opens, and what did happen.

    `before_step` is called in the lane's thread with the number of each step, before it is computed; what it raises
    is what the step fails with. `before_open` is the same for each context. `broken_rows` names steps whose first row
    of logits is not a number, and `half_steps` those that are abandoned when half of their tokens are computed.
    """

    def __init__(
        self,
        before_step: Callable[[int], None] = lambda _: None,
        *,
        before_open: Callable[[int], None] = lambda _: None,
        broken_rows: Sequence[int] = (),
        half_steps: Sequence[int] = (),
    ) -> None:
        self.before_step = before_step
        self.before_open = before_open
        self.broken_rows = broken_rows
        self.half_steps = half_steps
        self.opened = 0
        self.refused = 0
        self.closed = 0
        self.steps = 0
        self.in_step = False
        self.threads: set[int] = set()
        self.thread_counts: list[int] = []


class Hold:
    """Keeps a lane within one of its steps, before anything of it is computed, until it is let go."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._reached = threading.Event()
        self._let_go = threading.Event()

    def __call__(self, step: int) -> None:
        if step == self._step:
            self._reached.set()
            assert self._let_go.wait(TIMEOUT)

    def wait(self) -> None:
        """Wait until the lane is within the step."""
        assert self._reached.wait(TIMEOUT)

    def let_go(self) -> None:
        self._let_go.set()


class ScriptedContext:
    """A llama context that follows a script."""

    def __init__(self, script: Script, inner: Context) -> None:
        self._script = script
        self._inner = inner
        self._closed = False

    def probe(self) -> Abilities:
        return self._inner.probe()

    def decode(self, batch: Batch) -> None:
        self._script.threads.add(threading.get_ident())
        self._script.steps += 1
        self._script.before_step(self._script.steps)
        self._script.in_step = True
        half = self._script.steps in self._script.half_steps
        self._inner.decode(first_half(batch) if half else batch)
        self._script.in_step = False
        if half:
            raise StepAbandonedError

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        logits = self._inner.logits(batch)
        if self._script.steps in self._script.broken_rows:
            logits = logits.copy()
            logits[0] = np.nan
        return logits

    def remove(self, sequence: SequenceId, start: int = 0) -> bool:
        return self._inner.remove(sequence, start)

    def length(self, sequence: SequenceId) -> int:
        return self._inner.length(sequence)

    def copy(self, source: SequenceId, target: SequenceId, length: int) -> bool:
        return self._inner.copy(source, target, length)

    def merge(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        self._inner.merge(source, target, start, end)

    def shift(self, sequence: SequenceId, keep: int, drop: int) -> bool:
        return self._inner.shift(sequence, keep, drop)

    def saving(self, sequence: SequenceId) -> Parts[bytearray]:
        return self._inner.saving(sequence)

    def restoring(self, sequence: SequenceId, data: bytearray) -> Parts[bool]:
        return self._inner.restoring(sequence, data)

    def interrupt(self, on: bool) -> None:
        self._inner.interrupt(on)

    def set_threads(self, threads: int) -> None:
        self._script.thread_counts.append(threads)
        self._inner.set_threads(threads)

    def close(self) -> None:
        self._script.threads.add(threading.get_ident())
        if not self._closed:
            self._closed = True
            self._script.closed += 1
        self._inner.close()


class SpeakingContext(ScriptedContext):
    """One whose logits leave no doubt: for each sequence `texts` has all of its tokens, prompt and output.

    They are not numbers where there is `NO_TOKEN`.
    """

    def __init__(self, script: Script, inner: Context, texts: Mapping[int, Sequence[int]]) -> None:
        super().__init__(script, inner)
        self._texts = texts

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        logits = super().logits(batch).copy()
        struct = batch.struct
        wanted = [index for index in range(batch.size) if struct.logits[index]]
        for row, index in zip(logits, wanted, strict=True):
            if np.isfinite(row).all():
                token = self._texts[struct.seq_id[index][0]][struct.pos[index] + 1]
                row[:] = 0 if token != NO_TOKEN else np.nan
                row[token] += 10
        return logits


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
    threads: int = 1,
    device: Device = Device.CPU,
    adaptive: bool = True,
    options: ContextOptions = OPTIONS,
    can_abandon: bool = True,
    shift: ContextShift | None = None,
    output_rows: int = 0,
    drafting: DraftOptions | None = None,
    texts: Mapping[int, Sequence[int]] | None = None,
) -> Lane:
    """Open a lane; whoever calls it closes the lane. With `texts`, the model says what these tell for each sequence."""
    plays = script or Script()

    def open_context() -> StepContext:
        plays.threads.add(threading.get_ident())
        plays.opened += 1
        try:
            plays.before_open(plays.opened)
        except BaseException:
            plays.refused += 1
            raise
        context = Context(model, options)
        return ScriptedContext(plays, context) if texts is None else SpeakingContext(plays, context, texts)

    own = dataclasses.replace(stream_options(name), cores=cores, threads=threads, device=device, adaptive=adaptive)
    stream = CpuStream(own)
    return Lane(
        stream,
        model.vocabulary,
        open_context,
        max_step_tokens=max_step_tokens,
        limit=LIMIT,
        gate=gate or Gate(),
        by_sequence=options.partitioned,
        can_abandon=can_abandon,
        shift=shift,
        output_rows=output_rows,
        drafting=drafting,
    )


def first_half(batch: Batch) -> Batch:
    """Return the first half of each part of a batch, one token at least."""
    half = Batch(batch.capacity)
    offset = 0
    for sequence, start, end in batch.parts:
        middle = (end - start + 1) // 2
        half.add(sequence, batch.tokens[offset : offset + middle].tolist(), start, output=False)
        offset += end - start
    return half


def shortfall(model: Model, prompt: Sequence[int], output: Sequence[int], forbidden: Collection[int] = ()) -> float:
    """Return how far the worst of the chosen tokens was from being the likeliest of those that are not `forbidden`.

    Greedy choices fall short by rounding errors only.
    """
    worst = 0.0
    for logits, token in zip(logits_along(model, prompt, output), output, strict=True):
        logits[list(forbidden)] = -np.inf
        worst = max(worst, float(logits.max() - logits[token]))
    return worst


def misdraw(model: Model, prompt: Sequence[int], output: Sequence[int], forbidden: Collection[int] = ()) -> float:
    """Return how far the worst of the random numbers was from the one that draws its token, with `SEEDED` sampling.

    Right draws miss by rounding errors only.
    """
    assert SEEDED.seed is not None
    barred = [*model.vocabulary.end_of_generation, *forbidden]
    worst = 0.0
    for index, (logits, token) in enumerate(zip(logits_along(model, prompt, output), output, strict=True)):
        logits[barred] = -np.inf
        logits[list({*prompt, *output[:index]})] -= SEEDED.presence_penalty
        upper = _running_shares(logits)
        drawn = uniform(SEEDED.seed, 0, index)
        lower = upper[token - 1] if token else 0.0
        worst = max(worst, float(lower - drawn), float(drawn - upper[token]))
    return worst


def _running_shares(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the running sum of the softmax of `logits`."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    shares: npt.NDArray[np.float64] = weights.cumsum() / weights.sum()
    return shares


def logits_along(model: Model, prompt: Sequence[int], output: Sequence[int]) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the logits before each token of `output` in an undisturbed context, which is fed token by token."""
    context = Context(model, OPTIONS)
    batch = Batch(OPTIONS.max_step_tokens)
    sequence = SequenceId(0)
    pending = list(prompt)
    for token in output:
        while pending:
            chunk, pending = pending[: batch.capacity], pending[batch.capacity :]
            batch.clear()
            batch.add(sequence, chunk, context.length(sequence), output=not pending)
            context.decode(batch)
        yield context.logits(batch)[0].copy()
        pending = [token]
    context.close()

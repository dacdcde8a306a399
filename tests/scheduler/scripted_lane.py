"""A lane without a model, a thread or a clock: it takes a step when the test says so.

It carries out plans as the protocol in `llamalane.streams.steps` tells, written anew and as plainly as possible, and
complains when the scheduler asks for what no lane could do. Each token that it chooses depends on all tokens before
it, so an output comes out right only if nothing was lost, repeated or mixed up on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from llamalane.errors import DecodeError, LlamalaneError
from llamalane.ids import LEAST_URGENT, PlanVersion, RequestId, SequenceId, StepNumber
from llamalane.streams import (
    FinishReason,
    Join,
    LaneFailed,
    LaneMessage,
    LaneReady,
    Leave,
    RowOutput,
    StepPlan,
    StepReport,
    StepTimes,
)
from tests.scheduler.building import END

Speak = Callable[[Sequence[int]], int]
"""Chooses the token that comes after others."""


def letters(tokens: Sequence[int]) -> int:
    """Go on with a letter, for ever."""
    return ord("a") + sum(place * token for place, token in enumerate(tokens, 1)) % 26


def letters_with_an_end(tokens: Sequence[int]) -> int:
    """Go on with a letter, or end now and then."""
    choice = sum(place * token for place, token in enumerate(tokens, 1)) % 29
    return END if choice > 26 else ord("a") + choice % 26


def spoken(prompt: str, count: int, speak: Speak = letters) -> str:
    """Return what follows `prompt`: `count` letters, or fewer if it ends by itself."""
    tokens = [ord(letter) for letter in prompt]
    text = ""
    while len(text) < count and (token := speak(tokens)) != END:
        tokens.append(token)
        text += chr(token)
    return text


@dataclass(eq=False)
class ScriptedRow:
    join: Join
    tokens: list[int]
    computed: int
    chosen: int = 0
    started: bool = False
    sits_out: bool = False


class ScriptedLane:
    """A `LaneBackend` whose places hold `limit` cells each. `cells` says what each sequence's cells hold."""

    def __init__(
        self,
        name: str,
        *,
        limit: int,
        max_step_tokens: int = 512,
        can_roll_back: bool = True,
        speak: Speak = letters,
    ) -> None:
        self.name = name
        self.max_step_tokens = max_step_tokens
        self.rows: dict[RequestId, ScriptedRow] = {}
        self.cells: dict[SequenceId, list[int]] = {}
        self.broken: set[RequestId] = set()
        """Requests whose next token cannot be chosen."""
        self.wasted_joins = 0
        """How often cells that should have been there could not be used."""
        self.closed = False
        self.steps: list[StepReport] = []
        self._limit = limit
        self._can_roll_back = can_roll_back
        self._speak = speak
        self._mailbox: StepPlan | None = None
        self._epoch = 0
        self._version = PlanVersion(0)
        self._prefill_tokens = 0
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

    def step(self) -> None:
        """Take the plan that lies there, if any, and compute one step if there are rows."""
        plan, self._mailbox = self._mailbox, None
        left: tuple[RequestId, ...] = ()
        if plan is not None and plan.epoch == self._epoch:
            before = self._version
            left = tuple(self._apply(plan))
            if not self.rows and self._version != before:
                self._report(StepReport(self.name, StepNumber(len(self.steps)), self._version, left=left))
        if self.rows:
            self._compute(left)

    def fail(self, *, down: bool = False) -> None:
        """Lose the context, and for good if `down`."""
        self._epoch += 1
        self.rows.clear()
        self.cells.clear()
        self._say(LaneFailed(self.name, self._epoch, DecodeError(-3), down))

    def reopen(self) -> None:
        """Get a new context."""
        self._say(LaneReady(self.name))

    def _apply(self, plan: StepPlan) -> Iterable[RequestId]:
        assert [edit.version for edit in plan.edits] == sorted(edit.version for edit in plan.edits)
        fresh = [edit.change for edit in plan.edits if edit.version > self._version]
        self._version = plan.version
        self._prefill_tokens = plan.prefill_tokens
        for change in fresh:
            if isinstance(change, Join):
                self._join(change)
            else:
                self._leave(change)
                yield change.request

    def _join(self, join: Join) -> None:
        assert join.request not in self.rows, "a request joins twice"
        assert join.sequence not in [row.join.sequence for row in self.rows.values()], "two rows share a sequence"
        assert join.max_tokens >= 1
        assert len(join.tokens) + join.max_tokens <= self._limit, "more cells than a place has"
        cells = self.cells.setdefault(join.sequence, [])
        assert join.cached < len(join.tokens), "nothing is left to compute"
        assert cells[: join.cached] == list(join.tokens[: join.cached]), "the cells hold something else"
        self._keep(join.sequence, join.cached)
        self.wasted_joins += len(cells) < join.cached
        self.rows[join.request] = ScriptedRow(join, list(join.tokens), len(cells))

    def _leave(self, leave: Leave) -> None:
        row = self.rows.pop(leave.request, None)
        if row is not None:
            assert leave.keep <= row.computed, "cells that were not computed cannot be kept"
            self._keep(row.join.sequence, leave.keep)

    def _keep(self, sequence: SequenceId, count: int) -> None:
        cells = self.cells[sequence]
        if self._can_roll_back or count == len(cells):
            del cells[count:]
        else:
            cells.clear()

    def _compute(self, left: tuple[RequestId, ...]) -> None:
        prompts = sorted((row for row in self.rows.values() if not row.chosen), key=lambda row: row.join.urgency)
        best = min((row.join.level for row in prompts), default=LEAST_URGENT)
        decoding = []
        for row in self.rows.values():
            if row.chosen:
                row.sits_out = row.join.level > best and not row.sits_out
                if not row.sits_out:
                    decoding.append(row)
        budget = min(max(self._prefill_tokens, 1), self.max_step_tokens - len(decoding))
        outputs: list[RowOutput] = []
        started: list[RequestId] = []
        for row in decoding:
            self._advance(row, 1, outputs)
        computed = 0
        for row in prompts:
            count = min(budget - computed, len(row.tokens) - row.computed)
            if count:
                if not row.started:
                    started.append(row.join.request)
                row.started = True
                computed += count
                self._advance(row, count, outputs)
        self._report(
            StepReport(
                self.name,
                StepNumber(len(self.steps) + 1),
                self._version,
                left=left,
                started=tuple(started),
                outputs=tuple(outputs),
                decode_rows=len(decoding),
                prefill_tokens=computed,
                times=StepTimes(begin=0.0, decode=0.01 + 0.001 * computed, sample=0.0, idle=0.0),
            )
        )

    def _advance(self, row: ScriptedRow, count: int, outputs: list[RowOutput]) -> None:
        self.cells[row.join.sequence].extend(row.tokens[row.computed : row.computed + count])
        row.computed += count
        assert len(self.cells[row.join.sequence]) == row.computed <= self._limit
        if row.computed < len(row.tokens):
            return
        output = self._choose(row)
        outputs.append(output)
        if output.ended:
            del self.rows[row.join.request]

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
        if report.times is not None:
            self.steps.append(report)
        self._say(report)

    def _say(self, message: LaneMessage) -> None:
        assert self._receiver is not None
        self._receiver(message)

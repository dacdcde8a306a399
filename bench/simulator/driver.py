"""Drives a real lane without a scheduler: rows that compute exactly as much as they are told to."""

from __future__ import annotations

import queue
import random
from collections.abc import Sequence

from llamalane.errors import LlamalaneError
from llamalane.ids import PlanVersion, RequestId, SequenceId
from llamalane.streams import (
    Change,
    Edit,
    Grant,
    Join,
    LaneBackend,
    LaneFailed,
    LaneMessage,
    Leave,
    SamplingParameters,
    StepPlan,
    StepReport,
    StepTimes,
)

_PATIENCE = 300.0
"""Seconds after which a step that has not ended never will."""
_UNBOUNDED = 2**30


class Driver:
    """Gives a lane its plans, one at a time. A row goes on only for as many cells as it is granted.

    `vocabulary` is how many tokens there are to choose random prompts from.
    """

    def __init__(self, lane: LaneBackend, vocabulary: int) -> None:
        self.max_step_tokens = lane.max_step_tokens
        self._lane = lane
        self._vocabulary = vocabulary
        self._random = random.Random(1)
        self._messages: queue.SimpleQueue[LaneMessage] = queue.SimpleQueue()
        self._version = 0
        self._requests = 0
        self._rows: dict[int, RequestId] = {}
        self._lengths: dict[int, int] = {}
        lane.start(self._messages.put)

    def length(self, sequence: int) -> int:
        """Return how many of a row's tokens are computed."""
        return self._lengths[sequence]

    def join(self, sequence: int, prompt_tokens: int) -> None:
        """Put a row on `sequence` with a prompt of random tokens, of which none is computed yet.

        A row that is there leaves.
        """
        changes: list[Change] = []
        if sequence in self._rows:
            changes.append(Leave(self._rows.pop(sequence), keep=0))
        self._requests += 1
        self._rows[sequence] = RequestId(f"calibration-{self._requests}")
        self._lengths[sequence] = 0
        join = Join(
            request=self._rows[sequence],
            sequence=SequenceId(sequence),
            tokens=[self._random.randrange(self._vocabulary) for _ in range(prompt_tokens)],
            cached=0,
            generated=0,
            max_tokens=_UNBOUNDED,
            sampling=SamplingParameters(seed=self._requests, ignore_eos=True),
            cells=0,
        )
        self._post([*changes, join], self.max_step_tokens)
        self._next_report()

    def compute(self, sequence: int, tokens: int, steps: int = 1) -> list[StepTimes]:
        """Compute chunks of one row's prompt, of so many tokens each, in steps of their own that follow each other."""
        return self._run([sequence], tokens, steps, tokens)

    def decode(self, sequences: Sequence[int], steps: int) -> list[StepTimes]:
        """Let rows whose prompts are computed decode, all in the same steps."""
        return self._run(sequences, 1, steps, self.max_step_tokens)

    def _run(self, sequences: Sequence[int], tokens: int, steps: int, prefill_tokens: int) -> list[StepTimes]:
        """Let each row compute so many tokens more in each of so many steps."""
        for sequence in sequences:
            self._lengths[sequence] += steps * tokens
        grants = [Grant(self._rows[sequence], self._lengths[sequence]) for sequence in sequences]
        self._post(grants, prefill_tokens)
        times: list[StepTimes] = []
        while len(times) < steps:
            report = self._next_report()
            if report.times is not None:
                times.append(report.times)
        return times

    def _post(self, changes: Sequence[Change], prefill_tokens: int) -> None:
        self._version += 1
        version = PlanVersion(self._version)
        edits = tuple(Edit(version, change) for change in changes)
        self._lane.post(StepPlan(0, version, edits, prefill_tokens))

    def _next_report(self) -> StepReport:
        """Return the next report of the newest plan."""
        while True:
            try:
                message = self._messages.get(timeout=_PATIENCE)
            except queue.Empty:
                raise LlamalaneError("the lane has stopped") from None
            if isinstance(message, LaneFailed):
                raise message.error
            if isinstance(message, StepReport) and message.version == self._version:
                return message

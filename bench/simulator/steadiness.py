"""Whether a run of steps can tell the scheduler nothing that changes its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from llamalane.bench.simulator.lane import SimulatedLane
from llamalane.bench.simulator.request import seconds
from llamalane.bench.simulator.row import Row
from llamalane.ids import Level
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.pacing import SMALLEST_CHUNK, StepTimeModel
from llamalane.scheduler.request import Request

_ROUNDING = 1e-9
"""What is learned of many steps may differ from all that they told by this share."""


class SimulatedLedger(LaneLedger):
    """Production's ledger, which also tells what it would plan if it knew other rows and other times."""

    def would_plan(self, rows: Sequence[Row], token_seconds: float) -> int:
        """Return how many prompt tokens a step of these rows may compute if each takes so many seconds."""
        prompts = [cast(Request, row) for row in rows if not row.since_join]
        outputs = [row.level for row in rows if row.since_join]
        learned = self.model
        self.model = _Supposed(learned, token_seconds)
        try:
            return self._prefill_tokens(prompts, outputs)
        finally:
            self.model = learned


class _Supposed(StepTimeModel):
    """What was learned of a lane's speed, but for what a prompt token takes."""

    def __init__(self, learned: StepTimeModel, token_seconds: float) -> None:
        super().__init__()
        self._decode_seconds = learned._decode_seconds
        self._token_seconds = token_seconds


def is_steady(lane: SimulatedLane, ledger: SimulatedLedger, targets: Mapping[Level, float]) -> bool:
    """Return whether the plan will stay as it is while the lane computes the run that it has begun."""
    if lane.prefill_tokens:
        return _keeps_chunks(lane, ledger)
    return _keeps_rows(lane, ledger, targets)


def _keeps_rows(lane: SimulatedLane, ledger: SimulatedLedger, targets: Mapping[Level, float]) -> bool:
    """Return whether a run without prompts tells nothing new.

    The scheduler sets rows aside, and lets others wait, when steps with one row more become longer than the most urgent
    rows may wait for a token. What it expects of these follows the steps that it hears of, but for half as much again
    at most.
    """
    if lane.last_duration == lane.duration:
        return True
    rows, last = len(lane.rows), seconds(lane.last_duration)
    rise = max(0.0, last - ledger.model.decode_seconds(rows))
    target = targets[min([row.level for row in lane.rows])]
    return max(1.5 * last, ledger.model.decode_seconds(rows + 1) + 1.5 * rise) <= target


def _keeps_chunks(lane: SimulatedLane, ledger: SimulatedLedger) -> bool:
    """Return whether chunks stay as small as they ever get, whatever of the run the scheduler has heard of.

    Steps with prompts only tell what a prompt token takes. The less it takes the larger chunks may be, and of equal
    steps the first are the shortest.
    """
    known = ledger.model.token_seconds
    if known is None:
        return False
    told = [
        max(seconds(duration) - ledger.model.decode_seconds(rows), 0.0) / lane.prefill_tokens
        for duration, rows in lane.next_steps(2)
    ]
    least = min(known, *told) * (1 - _ROUNDING)
    # The ledger has yet to hear of rows that have just ended.
    return ledger.would_plan(lane.rows, least) == min(SMALLEST_CHUNK, lane.max_step_tokens)

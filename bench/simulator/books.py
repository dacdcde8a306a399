"""The scheduler's books of a simulated lane: production's own ledger, fed with the lane's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from llamalane.bench.simulator.lane import Moment, SimulatedLane
from llamalane.bench.simulator.request import Nanoseconds, seconds
from llamalane.bench.simulator.row import Row
from llamalane.ids import Level, PlanVersion, RequestId, SequenceId, StepNumber
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.request import Request
from llamalane.streams import (
    Grant,
    Join,
    Park,
    Parking,
    PoolLane,
    RowOutput,
    SamplingParameters,
    StepReport,
    StepTimes,
    Trim,
)

_SAMPLING = SamplingParameters(seed=0)
_SEQUENCE = SequenceId(0)
_TOKEN = 0


class _Backend(NamedTuple):
    max_step_tokens: int


class _LedgerLane(NamedTuple):
    """What a ledger asks of its lane."""

    name: str
    backend: _Backend


class LaneBooks:
    """What the scheduler knows of one lane, and the changes that it has yet to tell the lane."""

    def __init__(self, lane: SimulatedLane, targets: Mapping[Level, float]) -> None:
        self.lane = lane
        # The ledger looks at a few attributes of its requests, which rows have as well.
        self.ledger = LaneLedger(cast(PoolLane, _LedgerLane(str(lane.index), _Backend(lane.max_step_tokens))), targets)
        self._joining: list[Row] = []
        self._leaving: list[Row] = []
        self._parked: list[Row] = []
        self._version = PlanVersion(0)
        self._interrupted: set[RequestId] = set()
        """Requests whose step was broken off, and that have not got a token since."""

    @property
    def rows(self) -> list[Row]:
        """The rows that have a place."""
        return cast(list[Row], list(self.ledger.running.values()))

    def join(self, row: Row) -> None:
        """Let a row join with the next plan."""
        self._joining.append(row)
        self.ledger.running[row.id] = cast(Request, row)
        self.ledger.edit(_join(row))

    def grow(self) -> None:
        """Grant more cells to those rows that run short of them after the step that has just ended.

        There are always enough; what comes of it is a new plan, with a prefill budget for the present moment.
        """
        for row in self.lane.gained:
            if row.id in self.ledger.running and row.grows():
                self.ledger.edit(Grant(row.id, row.length))

    def trim(self) -> None:
        """Let the next plan remove cells that nobody needs; that there is one is all that comes of it."""
        self.ledger.edit(Trim(_SEQUENCE))

    def park(self, row: Row) -> None:
        """Let a row leave with the next plan, to go on later."""
        self._leaving.append(row)
        row.park()
        self.ledger.parking[row.id] = self.ledger.running.pop(row.id)
        self.ledger.edit(Park(row.id, _SEQUENCE, Parking.PAUSE))

    def drop(self, row: Row) -> None:
        """Strike out a row that has ended, or left."""
        self.ledger.running.pop(row.id, None)
        self.ledger.parking.pop(row.id, None)

    def begin(self, time: Nanoseconds) -> None:
        """Let the lane carry out the plan that lies there and go on."""
        self._parked += self.lane.start(time)

    def take_parked(self) -> list[Row]:
        """Return the rows of which the lane has said that they are parked; it says so when its next step is over."""
        parked, self._parked = self._parked, []
        return parked

    def settle(self, now: Moment) -> None:
        """Take note of the steps that are over `now`, while others of the same run are not."""
        if self.lane.settle(now):
            self.observe(self.lane.begin, self.lane.rows)

    def observe(self, time: Nanoseconds, gained: Sequence[Row]) -> None:
        """Take note of the step that ended at `time`; of a run of equal steps, that of the last one tells all."""
        lane = self.lane
        told = [row.id for row in gained if row.id in self._interrupted] if self._interrupted else []
        self._interrupted.difference_update(told)
        report = StepReport(
            lane="",
            step=StepNumber(lane.steps_done),
            version=self._version,
            outputs=tuple([RowOutput(request, _TOKEN) for request in told]),
            decode_rows=lane.decode_rows,
            prefill_tokens=lane.prefill_tokens,
            times=StepTimes(begin=0.0, decode=seconds(lane.duration), sample=0.0, idle=0.0),
        )
        self.ledger.observe(report, seconds(time))

    def observe_abandoned(self, time: Nanoseconds) -> None:
        """Take note that the step under way was broken off at `time`."""
        step = StepNumber(self.lane.steps_done)
        self.ledger.observe(StepReport(lane="", step=step, version=self._version, abandoned=True), seconds(time))

    def post(self, time: Nanoseconds, *, successors: bool, abort_after: float | None) -> tuple[bool, bool]:
        """Post a plan if the lane needs a new one; returns whether it did, and whether the step is to be broken off.

        `successors` tells that requests wait for places.
        """
        now = seconds(time)
        step = self.ledger.step_to_abandon(now, abort_after)
        if step is not None:
            self._interrupted.update(row.id for row in self.ledger)
            self._interrupted.difference_update(row.id for row in self._joining)
        plan = self.ledger.next_plan(now, successors=successors)
        if plan is None:
            return False, False
        self._version = plan.version
        self.lane.post(self._joining, self._leaving, plan)
        self._joining.clear()
        self._leaving.clear()
        return True, step is not None


def _join(row: Row) -> Join:
    return Join(
        request=row.id,
        sequence=_SEQUENCE,
        tokens=(),
        cached=0,
        generated=0,
        max_tokens=row.left,
        sampling=_SAMPLING,
        level=row.level,
    )

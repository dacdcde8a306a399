"""The scheduler's books of a simulated lane: production's own ledger, fed with the lane's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from llamalane.bench.simulator.lane import Moment, SimulatedLane
from llamalane.bench.simulator.request import Picoseconds, seconds
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


class _Times(NamedTuple):
    decode: float
    sample: float = 0.0
    idle: float = 0.0


class _Report(NamedTuple):
    """What a ledger asks of a report on a step; made a million times, and quicker than a real one."""

    step: StepNumber
    version: PlanVersion
    outputs: Sequence[RowOutput]
    decode_rows: int
    prefill_tokens: int
    times: _Times
    abandoned: bool = False


class LaneBooks:
    """What the scheduler knows of one lane, and the changes that it has yet to tell the lane."""

    def __init__(self, lane: SimulatedLane, targets: Mapping[Level, float]) -> None:
        self.lane = lane
        # The ledger looks at a few attributes of its requests, which rows have as well.
        self.ledger = LaneLedger(cast(PoolLane, _LedgerLane(str(lane.index), _Backend(lane.max_step_tokens))), targets)
        self._targets = targets
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

    def begin(self, time: Picoseconds) -> None:
        """Let the lane carry out the plan that lies there and go on."""
        self._parked += self.lane.start(time)
        if self.lane.steps > 1 and not self._steady():
            self.lane.cut()

    def take_parked(self) -> list[Row]:
        """Return the rows of which the lane has said that they are parked; it says so when its next step is over."""
        parked, self._parked = self._parked, []
        return parked

    def settle(self, now: Moment) -> None:
        """Take note of the steps that are over `now`, while others of the same run are not."""
        if self.lane.settle(now):
            self.observe(self.lane.begin, self.lane.rows)

    def observe(self, time: Picoseconds, gained: Sequence[Row]) -> None:
        """Take note of the steps that have ended, the last of them at `time`."""
        lane = self.lane
        for duration in lane.durations[:-1]:
            self.ledger.model.observe(self._report(duration))
        told = [row.id for row in gained if row.id in self._interrupted] if self._interrupted else []
        self._interrupted.difference_update(told)
        self.ledger.observe(self._report(lane.durations[-1], told), seconds(time))

    def observe_abandoned(self, time: Picoseconds) -> None:
        """Take note that the step under way was broken off at `time`."""
        step = StepNumber(self.lane.steps_done)
        self.ledger.observe(StepReport(lane="", step=step, version=self._version, abandoned=True), seconds(time))

    def post(self, time: Picoseconds, *, successors: bool, abort_after: float | None) -> tuple[bool, bool]:
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

    def _steady(self) -> bool:
        """Return whether the run of steps that has begun can tell the scheduler nothing that changes its plan.

        It sets rows aside, and lets others wait, when steps with one row more become longer than the most urgent rows
        may wait for a token. What it expects of these follows the steps that it hears of, but for half as much again
        at most.
        """
        lane, model = self.lane, self.ledger.model
        if lane.last_duration == lane.duration:
            return True
        rows, last = len(lane.rows), seconds(lane.last_duration)
        rise = max(0.0, last - model.decode_seconds(rows))
        target = self._targets[min([row.level for row in lane.rows])]
        return max(1.5 * last, model.decode_seconds(rows + 1) + 1.5 * rise) <= target

    def _report(self, duration: Picoseconds, told: Sequence[RequestId] = ()) -> StepReport:
        lane = self.lane
        report = _Report(
            step=StepNumber(lane.steps_done),
            version=self._version,
            outputs=[RowOutput(request, _TOKEN) for request in told],
            decode_rows=lane.decode_rows,
            prefill_tokens=lane.prefill_tokens,
            times=_Times(seconds(duration)),
        )
        return cast(StepReport, report)


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

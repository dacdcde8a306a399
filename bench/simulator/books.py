"""The scheduler's books of a simulated lane: production's own ledger, fed with the lane's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from llamalane.bench.simulator.lane import Moment, SimulatedLane
from llamalane.bench.simulator.places import Places
from llamalane.bench.simulator.request import SECOND, Picoseconds, seconds
from llamalane.bench.simulator.row import Row
from llamalane.bench.simulator.steadiness import SimulatedLedger, is_steady
from llamalane.bench.simulator.views import view_of_lane
from llamalane.ids import Level, PlanVersion, RequestId, SequenceId, StepNumber
from llamalane.scheduler.request import Request
from llamalane.streams import (
    FinishReason,
    Grant,
    Join,
    Park,
    Parking,
    RowOutput,
    SamplingParameters,
    StepReport,
    Trim,
)

_SAMPLING = SamplingParameters(seed=0)
_SEQUENCE = SequenceId(0)
_TOKEN = 0


class _Times:
    __slots__ = ("decode",)
    sample = idle = 0.0
    threads = 0  # not known

    def __init__(self, decode: float) -> None:
        self.decode = decode


class _Report:
    """What a ledger asks of a report on a step; made a million times, and quicker than a real one.

    Of the rows that got a token, only those are told that have ended, or had lost a step before.
    """

    __slots__ = ("decode_rows", "outputs", "prefill_tokens", "step", "times", "version")
    abandoned = False
    drafted_tokens = accepted_tokens = 0

    def __init__(
        self,
        step: StepNumber,
        version: PlanVersion,
        outputs: Sequence[RowOutput],
        decode_rows: int,
        prefill_tokens: int,
        times: _Times,
    ) -> None:
        self.step = step
        self.version = version
        self.outputs = outputs
        self.decode_rows = decode_rows
        self.prefill_tokens = prefill_tokens
        self.times = times


class LaneBooks:
    """What the scheduler knows of one lane, and the changes that it has yet to tell the lane.

    `places` are those of all lanes.
    """

    def __init__(self, lane: SimulatedLane, targets: Mapping[Level, float], places: Places) -> None:
        self.lane = lane
        # The ledger looks at a few attributes of its requests, which rows have as well.
        self.ledger = SimulatedLedger(view_of_lane(lane, places), targets)
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
        for row in self.lane.gained_last:
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
        if self.lane.steps > 1 and not is_steady(self.lane, self.ledger, self._targets):
            self.lane.cut()

    def take_parked(self) -> list[Row]:
        """Return the rows of which the lane has said that they are parked; it says so when its next step is over."""
        parked, self._parked = self._parked, []
        return parked

    def settle(self, now: Moment) -> None:
        """Take note of the steps that are over `now`, while others of the same run are not."""
        if self.lane.settle(now):
            self.observe(self.lane.begin, self.lane.gained)

    def observe(self, time: Picoseconds, gained: Sequence[Row], ended: Sequence[Row] = ()) -> None:
        """Take note of the steps that are over, the last of them at `time`.

        In these, `gained` got tokens; of them, `ended` got their last ones.
        """
        *before, last = self.lane.steps_over
        if before:
            self._learn(before)
        outputs = [RowOutput(row.id, _TOKEN, FinishReason.LENGTH) for row in ended]
        if self._interrupted:
            told = [row.id for row in gained if row.id in self._interrupted]
            self._interrupted.difference_update(told)
            outputs += [RowOutput(request, _TOKEN) for request in told]
        self.ledger.observe(cast(StepReport, self._report(last, outputs)), seconds(time))

    def _learn(self, steps: Sequence[tuple[Picoseconds, int]]) -> None:
        """Learn from steps of a run what the ledger would learn from a report on each of them."""
        if self.lane.prefill_tokens:
            timed = [(duration / SECOND, rows) for duration, rows in steps]
            self.ledger.model.observe_chunks(timed, self.lane.prefill_tokens)
        else:  # with equally many rows in each of them
            self.ledger.model.observe_decodes([duration / SECOND for duration, _ in steps], steps[0][1])

    def observe_abandoned(self, time: Picoseconds) -> None:
        """Take note that the step under way was broken off at `time`."""
        step = StepNumber(self.lane.steps_done)
        self.ledger.observe(StepReport(lane="", step=step, version=self._version, abandoned=True), seconds(time))

    def post(self, time: Picoseconds, *, successors: bool, abort_after: float | None) -> tuple[bool, bool]:
        """Post a plan if the lane needs a new one; returns whether it did, and whether the step is to be broken off.

        `successors` tells that requests wait for places.
        """
        now = seconds(time)
        # Only for one that is about to join; nobody here leaves before its end.
        step = self.ledger.step_to_abandon(now, abort_after) if self._joining else None
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

    def _report(self, step: tuple[Picoseconds, int], outputs: Sequence[RowOutput] = ()) -> _Report:
        duration, decode_rows = step
        number = StepNumber(self.lane.steps_done)
        times = _Times(seconds(duration))
        return _Report(number, self._version, outputs, decode_rows, self.lane.prefill_tokens, times)


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

"""The simulated scheduler: arrivals and lanes on one virtual clock.

It does what `llamalane.scheduler.Scheduler` does, in the same order. A request that arrives while its lane computes
joins at the end of that step; a lane that sleeps begins at once. At the end of a step the lane goes on by itself, and
only then does the scheduler hear of it. But when a row has ended and the lane was told that requests wait, it waits
for the one that follows; this takes no time here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from llamalane.bench.simulator.arrivals import Arrivals
from llamalane.bench.simulator.books import LaneBooks
from llamalane.bench.simulator.lane import ARRIVALS, Moment, SimulatedLane
from llamalane.bench.simulator.machine import Machine
from llamalane.bench.simulator.outcomes import OutcomeLog, Outcomes
from llamalane.bench.simulator.places import Places
from llamalane.bench.simulator.policies import Policy
from llamalane.bench.simulator.request import SimulatedRequest
from llamalane.bench.simulator.row import Row
from llamalane.bench.simulator.seating import Seating
from llamalane.bench.simulator.timeline import Timeline
from llamalane.errors import LlamalaneError


class Simulation:
    """Runs requests through a policy on a machine.

    `arrivals` come in order of their time. `longest_run` bounds how many equal steps are computed at once: with 1,
    every step is computed by itself, and the result is the same. `timeline` takes down what happens on its lane.
    """

    def __init__(
        self,
        machine: Machine,
        policy: Policy,
        arrivals: Iterator[SimulatedRequest],
        *,
        longest_run: int | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self._policy = policy
        self._abort_after = policy.abort_after if machine.can_abandon else None
        lanes = [
            SimulatedLane(
                index,
                places,
                machine.speed,
                max_step_tokens=machine.max_step_tokens,
                sequences=machine.sequences[index],
                partitioned=machine.partitioned,
                micro_batch=machine.micro_batch,
                longest_run=longest_run,
            )
            for index, places in enumerate(machine.places)
        ]
        places = Places(machine.places, machine.sequences, machine.cells)
        self._books = [LaneBooks(lane, machine.targets, places) for lane in lanes]
        self._seating = Seating(places, policy, self._books)
        self._timeline = timeline or Timeline(most=0)
        self._arrivals = Arrivals(arrivals)
        self._ends: list[Moment] = []
        """When lanes end their runs of steps, as a heap; only a lane's own present end counts."""
        self._now = Moment(0, ARRIVALS)
        self._successors = False
        """Whether lanes have been told that requests wait."""
        self._orders = 0
        self._log = OutcomeLog()

    def run(self) -> Outcomes:
        """Run until every request has ended, and return what became of them."""
        while True:
            end = self._next_end()
            arrival = self._arrivals.time
            if arrival is not None and (end is None or arrival <= end.time):
                self._now = Moment(arrival, ARRIVALS)
                self._arrive(self._arrivals.pop())
            elif end is not None:
                self._now = heapq.heappop(self._ends)
                self._end_steps(self._books[end.lane])
            else:
                break
        if len(self._policy):
            raise LlamalaneError(f"{len(self._policy)} requests were left waiting: no place is open to them")
        self._seating.check_empty()
        self._log.steps = sum(books.lane.steps_done for books in self._books)
        return self._log.outcomes()

    def _next_end(self) -> Moment | None:
        while self._ends:
            time, index = self._ends[0]
            lane = self._books[index].lane
            if lane.steps and lane.end == time:
                return self._ends[0]
            heapq.heappop(self._ends)
        return None

    def _arrive(self, request: SimulatedRequest) -> None:
        self._orders += 1
        request.order = self._orders
        for refused in self._policy.add(request):
            self._log.refused[refused.level] += 1
        self._seating.fill(self._now)
        self._dispatch()

    def _end_steps(self, books: LaneBooks) -> None:
        """End a lane's run of steps, and tell the scheduler.

        The lane goes on by itself meanwhile, unless rows have ended and it waits for those that follow them.
        """
        lane = books.lane
        ended = lane.finish()
        books.observe(self._now.time, lane.gained, ended)
        parked = books.take_parked()
        if ended or lane.changing:
            self._charge([*lane.rows, *ended])
        waits = bool(ended) and lane.waits
        if not waits:
            self._start(books)
        self._park(books, parked)
        self._end(ended)
        books.grow()
        self._seating.touch(books)
        self._seating.keep_time(books, self._now)
        self._seating.fill(self._now)
        self._dispatch()

    def _start(self, books: LaneBooks) -> None:
        books.begin(self._now.time)
        lane = books.lane
        if lane.index == self._timeline.lane:
            self._timeline.note(lane.rows, self._now.time)
        if lane.asleep:
            self._park(books, books.take_parked())
        else:
            heapq.heappush(self._ends, Moment(lane.end, lane.index))

    def _end(self, rows: Sequence[Row]) -> None:
        for row in rows:
            request = row.request
            request.generated = request.output_tokens
            request.ended = self._now.time
            self._policy.growth.observe(request.level, request.generated)
            self._seating.leave(row)
            self._log.add(request)
            if request.next_turn is not None:
                self._arrivals.push(request.next_turn, self._now.time + request.think)

    def _park(self, books: LaneBooks, rows: Sequence[Row]) -> None:
        for row in rows:
            books.drop(row)
            self._seating.note_parked(row)
            self._policy.requeue(row.request)

    def _dispatch(self) -> None:
        """Tell every lane whose plan has changed."""
        successors = len(self._policy) > 0
        if successors != self._successors:
            self._successors = successors
            self._seating.touch_all()
        abandoned = []
        while (books := self._seating.next_touched()) is not None:
            lane = books.lane
            books.settle(self._now)
            posted, abandon = books.post(self._now.time, successors=successors, abort_after=self._abort_after)
            if posted and lane.asleep:
                self._start(books)
            elif posted and abandon:
                abandoned.append(books)
            elif posted and lane.steps > 1:
                lane.cut()
                heapq.heappush(self._ends, Moment(lane.end, lane.index))
        if abandoned:
            for books in abandoned:
                self._abandon(books)
            self._seating.fill(self._now)
            self._dispatch()

    def _abandon(self, books: LaneBooks) -> None:
        """Break a lane's step off, and let it go on with the plan that lies there."""
        books.lane.abandon()
        parked = books.take_parked()
        books.observe_abandoned(self._now.time)
        self._start(books)
        self._park(books, parked)
        self._seating.touch(books)

    def _charge(self, rows: Sequence[Row]) -> None:
        """Count the tokens that rows have gained since they were last counted."""
        for row in rows:
            gained = row.generated - row.charged
            if gained:
                row.charged += gained
                self._policy.charge(row.request, output_tokens=gained)

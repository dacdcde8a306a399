"""Who gets a place, on which lane, and who has to give way: production's policies, asked in production's order."""

from __future__ import annotations

from collections.abc import Sequence

from llamalane.bench.simulator.books import LaneBooks
from llamalane.bench.simulator.lane import Moment
from llamalane.bench.simulator.places import ASK_ALL, Places
from llamalane.bench.simulator.policies import Candidate, Policy
from llamalane.bench.simulator.request import SimulatedRequest
from llamalane.bench.simulator.row import Row
from llamalane.bench.simulator.runners import Runners
from llamalane.bench.simulator.views import view_of_waiting
from llamalane.scheduler.displacement import DisplacementPolicy
from llamalane.scheduler.placement import best_lane
from llamalane.scheduler.request import RequestState


class Seating:
    """The `places` of all lanes, and who has them.

    It does what `llamalane.scheduler.roster.Roster` and `llamalane.scheduler.room.RoomMaker` do, on the assumption
    that KV cells never run out.
    """

    def __init__(self, places: Places, policy: Policy, books: Sequence[LaneBooks]) -> None:
        self._policy = policy
        self._books = books
        self._places = places
        self._runners = Runners()
        self._paused: list[list[SimulatedRequest]] = [[] for _ in books]
        """The requests that wait and have cells on each lane."""
        self._touched: list[LaneBooks] = []

    def touch(self, books: LaneBooks) -> None:
        """Take note that a lane may need a new plan."""
        self._touched.append(books)

    def touch_all(self) -> None:
        """Take note that all lanes may need a new plan; if they are many, each will learn what is new in its time."""
        if len(self._books) <= ASK_ALL:
            self._touched += self._books

    def next_touched(self) -> LaneBooks | None:
        """Return a lane that may need a new plan, None when no more do."""
        return self._touched.pop() if self._touched else None

    def fill(self, now: Moment) -> None:
        """Give places to all who can get one."""
        while len(self._policy):
            candidate = self._policy.choose(self._places.free, self._runners.count)
            lane = None if candidate is None else self._lane_for(candidate, now)
            if candidate is None or lane is None:
                candidate = self._policy.most_urgent()
                lane = None if candidate is None else self._make_room(candidate.request, now)
                if candidate is None or lane is None:
                    return
            self._seat(candidate, lane, now)

    def leave(self, row: Row) -> None:
        """Take back what a request had that has ended."""
        self._books[row.lane].drop(row)
        if row.state is RequestState.RUNNING:
            self._runners.remove(row)
            self._places.give_back(row.lane, row.request.session, row.length - 1, _cells(row.request))
        elif row.request.kept_on is not None:  # it was to be paused, and its place was given away before
            self._give_up_cells(row.lane, row.request)

    def keep_time(self, books: LaneBooks, now: Moment) -> None:
        """Park who makes a lane's most urgent rows miss their target by having any part in their steps at all."""
        ledger = books.ledger
        if self._policy.displaces and ledger.less_urgent_rows() == 0:
            for victim in self._policy.victims(ledger.best_output(), books.rows, lambda row: self._loss(row, now)):
                self._park(victim, now, can_pause=True)

    def note_parked(self, row: Row) -> None:
        """Take note that a row has left its lane, and that its request waits again."""
        row.leave()
        request = row.request
        request.kept = row.length - row.uncomputed
        if request.kept_on is not None:
            self._paused[row.lane].append(request)

    def check_empty(self) -> None:
        """Raise unless every place came back, and nothing is paused."""
        assert self._places.free == self._places.total
        assert not any(self._paused)
        assert not any(self._runners.count.values())

    def _lane_for(self, candidate: Candidate, now: Moment) -> int | None:
        """Return the lane where a request can start now, None when none has a place for it.

        A lane whose more urgent rows would then miss their target has none, unless its turn came by share.
        """
        request = candidate.request
        home = request.kept_on
        if home is not None and self._places.free_on(home) and self._welcomes(home, candidate):
            return home
        lanes = [lane for lane in self._places.candidates(request.session) if self._welcomes(lane, candidate)]
        best = self._best_of([lane for lane in lanes if self._places.sequences_on(lane)], request, now)
        if best is not None:
            return best
        return next((lane for lane in lanes if self._clear(lane, request)), None)

    def _best_of(self, lanes: Sequence[int], request: SimulatedRequest, now: Moment) -> int | None:
        """Return the lane on which a request is likely to end first, None when there is none."""
        if len(lanes) < 2:
            return lanes[0] if lanes else None
        for lane in lanes:
            self._books[lane].settle(now)  # so that it has learned from every step that is over
        ledgers = [self._books[lane].ledger for lane in lanes]
        best = best_lane(view_of_waiting(request), ledgers, self._policy.growth)
        return next(lane for lane, ledger in zip(lanes, ledgers, strict=True) if ledger is best)

    def _welcomes(self, lane: int, candidate: Candidate) -> bool:
        ledger = self._books[lane].ledger
        sheltered = candidate.by_share or candidate.request.sheltered
        return sheltered or not ledger.running or ledger.admits(candidate.request.rank)

    def _make_room(self, request: SimulatedRequest, now: Moment) -> int | None:
        """Park a less urgent request so that a waiting one can start, and return the lane; None where none can be."""
        if not self._policy.displaces:
            return None
        for rows in self._runners.less_urgent(request.level):
            for victim in self._policy.victims(request.level, rows, lambda row: self._loss(row, now)):
                if self._books[victim.lane].ledger.admits(request.level):
                    self._park(victim, now, can_pause=self._clear(victim.lane, request))
                    return victim.lane
        return None

    def _loss(self, row: Row, now: Moment) -> float:
        if self._places.sequences_on(row.lane):
            return 0.0
        self._books[row.lane].settle(now)
        return row.length

    def _park(self, victim: Row, now: Moment, *, can_pause: bool) -> None:
        """Take a row's place away. Its cells stay where they are or go to host memory."""
        lane, request = victim.lane, victim.request
        self._books[lane].settle(now)
        if can_pause:
            request.kept_on = lane
        else:
            self._places.give_up(lane, _cells(request))
        self._runners.remove(victim)
        self._places.pause(lane)
        self._books[lane].park(victim)
        self.touch(self._books[lane])

    def _clear(self, lane: int, request: SimulatedRequest) -> bool:
        """Return whether a lane has a sequence for a request, after the cells of one that it paused went elsewhere."""
        if request.kept_on == lane or self._places.sequences_on(lane):
            return True
        victim = DisplacementPolicy.first_to_yield(self._paused[lane])
        if victim is None:
            return False
        self._end_pause(victim)
        self._give_up_cells(lane, victim)
        return True

    def _give_up_cells(self, lane: int, request: SimulatedRequest) -> None:
        self._places.give_up(lane, _cells(request))
        self._books[lane].trim()
        self.touch(self._books[lane])

    def _end_pause(self, request: SimulatedRequest) -> None:
        assert request.kept_on is not None
        self._paused[request.kept_on].remove(request)
        request.kept_on = None

    def _seat(self, candidate: Candidate, lane: int, now: Moment) -> None:
        request = candidate.request
        self._policy.admit(candidate)
        cached = self._take_place(request, lane)
        request.lane = lane
        if request.admitted is None:
            request.admitted = now.time
            request.cached = cached
            self._policy.charge(request, prompt_tokens=request.prompt_tokens)
        row = Row(request, lane, cached)
        self._runners.add(row)
        self._books[lane].join(row)
        self.touch(self._books[lane])

    def _take_place(self, request: SimulatedRequest, lane: int) -> int:
        """Take a place of a lane, and return how many of the request's tokens are in its cells."""
        kept, home = request.kept, request.kept_on
        request.kept = 0
        if home is not None:
            self._end_pause(request)
            if home == lane:
                self._places.resume(lane)
                return kept
            self._give_up_cells(home, request)
            kept = 0
        cached = self._places.take(lane, request.session, request.tokens, _cells(request))
        return max(kept, cached)


def _cells(request: SimulatedRequest) -> int:
    """Return how many KV cells a request comes to need; they are its own from the start."""
    return request.prompt_tokens + request.output_tokens

"""Makes room on the lanes: decides who is parked, and how, and lets running requests grow."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llamalane.scheduler.displacement import DisplacementPolicy
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.parking import ParkingCosts
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.roster import Roster, cells_needed
from llamalane.streams import Parking, PoolLane
from llamalane.streams.parts import seconds_between


class ParkReason(enum.Enum):
    """Why a request is parked."""

    DISPLACED = "displaced"
    """A more urgent request takes its place."""
    CELLS = "cells"
    """The KV cells ran out under running requests."""
    TIME = "time"
    """More urgent rows would miss their target beside it."""
    RECLAIMED = "reclaimed"
    """It is paused, and its cells are wanted."""


class RoomMaker:
    """Parks requests when places, KV cells or time run short.

    `parked` is told of each, before it is, how and why: of a running one, or of a paused one that loses its cells.
    """

    def __init__(
        self,
        roster: Roster,
        policy: DisplacementPolicy,
        costs: ParkingCosts,
        parked: Callable[[Request, Parking, ParkReason], None],
    ) -> None:
        self._roster = roster
        self._policy = policy
        self._costs = costs
        self._parked = parked

    def find_room(self, request: Request, *, by_share: bool) -> PoolLane | None:
        """Return a lane with a place and cells for a waiting request, taken from paused ones if need be, or None."""
        lane = self._roster.lane_for(request, by_share=by_share)
        if lane is not None:
            return lane
        for lane in self._roster.lanes_open_to(request, by_share=by_share):
            ledger = self._roster.ledgers[lane.name]
            others = self._paused_others(ledger, request)
            need = _need(request, lane)
            within_reach = lane.free >= need.places and need.cells <= self._within_reach(ledger, others)
            if within_reach and self._clear(ledger, request):
                return lane
        return None

    def make_room(self, request: Request, open_places: int) -> PoolLane | None:
        """Park less urgent requests so that a waiting one can start, and return the lane; None where that cannot be.

        `open_places` are the free places that it may take; further ones are kept for others. One is parked at least.
        """
        lanes = self._roster.roles.lanes_for(request)
        below = (one for one in self._roster if one.level > request.level)  # nobody else gives way
        running = [one for one in below if _can_be_parked(one) and one.lease and _is_open(one.lease.lane, lanes)]
        victims = self._policy.victims(request.level, running, self._loss)
        for name in dict.fromkeys(victim.lane for victim in victims):
            ledger = self._roster.ledgers[name]
            there = [victim for victim in victims if victim.lane == name]
            if self._displace(there, ledger, request, min(open_places, ledger.lane.free)):
                return ledger.lane
        return None

    def feed(self, ledger: LaneLedger) -> None:
        """Let the rows of a lane grow that run short of cells, the oldest first, and keep its most urgent in time."""
        short = [one for one in ledger.running.values() if _can_be_parked(one) and one.runs_short]
        for request in sorted(short, key=lambda request: request.order):
            if _can_be_parked(request) and self._roster.roles.grows(request):  # it may have been parked for another one
                self._grow(request, ledger)
        self._keep_time(ledger)

    def _displace(self, victims: list[Request], ledger: LaneLedger, request: Request, open_places: int) -> bool:
        """Park as many of a lane's `victims` as a request needs to start there; False where all would not do."""
        paused = self._paused_others(ledger, request)
        need = _need(request, ledger.lane)
        if not ledger.admits(request.level) or need.cells > self._within_reach(ledger, [*victims, *paused]):
            return False
        if need.places > open_places + len(victims):
            return False
        for parked, victim in enumerate(victims, start=1):
            self._park(victim, ParkReason.DISPLACED, can_pause=self._clear(ledger, request))
            if parked + open_places >= need.places and self._clear(ledger, request):
                return True
        return False

    def _grow(self, request: Request, ledger: LaneLedger) -> None:
        while not self._roster.grow(request):
            if self._reclaim(ledger):
                continue
            if any(one.lease is not None and not _can_be_parked(one) for one in ledger):
                return  # it is leaving or being paused: its cells can be had within a step
            victim = self._policy.first_to_yield(filter(_can_be_parked, ledger.running.values()))
            assert victim is not None
            self._park(victim, ParkReason.CELLS, can_pause=False)
            if victim is request:
                return

    def _keep_time(self, ledger: LaneLedger) -> None:
        """Park who makes the most urgent rows miss their target by having any part in their steps at all."""
        if ledger.less_urgent_rows() == 0:
            best = ledger.best_output()
            for victim in self._policy.victims(best, filter(_can_be_parked, ledger.running.values()), self._loss):
                self._park(victim, ParkReason.TIME, can_pause=True)

    def _clear(self, ledger: LaneLedger, request: Request) -> bool:
        """Return whether a lane has the sequences and cells that a request needs, after reclaiming what others paused.

        What it needs may become more by that, if it would have shared their cells.
        """
        region = ledger.lane.region
        while region.free < (need := _need(request, ledger.lane)).sequences or region.room < need.cells:
            if not self._reclaim(ledger, but=request):
                return False
        return True

    def _reclaim(self, ledger: LaneLedger, but: Request | None = None) -> bool:
        """Take the cells of a lane's least urgent paused request, but not those of `but`; False when none is paused."""
        victim = self._policy.first_to_yield(self._paused_others(ledger, but))
        if victim is None:
            return False
        assert victim.lease is not None
        how = self._costs.choose(
            victim.lease.cells,
            ledger.model.token_seconds,
            can_pause=False,
            most_seconds=_longest_copy(ledger, others=len(ledger.running)),
        )
        self._parked(victim, how, ParkReason.RECLAIMED)
        if how is Parking.SWAP:
            self._roster.park(victim, how)
        else:
            self._roster.forget(victim)
        return True

    def _park(self, victim: Request, reason: ParkReason, *, can_pause: bool) -> None:
        ledger = self._roster.ledger(victim)
        how = Parking.RECOMPUTE  # of a text that is embedded nothing stays between steps
        if not victim.model:
            how = self._costs.choose(
                victim.length,
                ledger.model.token_seconds,
                can_pause=can_pause,
                most_seconds=_longest_copy(ledger, others=len(ledger.running) - 1),
            )
        self._parked(victim, how, reason)
        self._roster.park(victim, how)

    def _paused_others(self, ledger: LaneLedger, but: Request | None) -> list[Request]:
        return [one for one in self._roster.paused_on(ledger) if one is not but]

    @staticmethod
    def _within_reach(ledger: LaneLedger, victims: list[Request]) -> int:
        """Return how many cells a lane could give if all of `victims` lost theirs."""
        region = ledger.lane.region
        return region.room + region.owned([one.lease.sequence for one in victims if one.lease is not None])

    def _loss(self, request: Request) -> float:
        ledger = self._roster.ledger(request)
        can_pause = ledger.lane.region.free > 0
        return self._costs.loss(
            request.length,
            ledger.model.token_seconds,
            can_pause=can_pause,
            most_seconds=_longest_copy(ledger, others=len(ledger.running) - 1),
        )


@dataclass(frozen=True, slots=True)
class _Need:
    """What a request and its company need of a lane beyond what they hold there."""

    places: int
    sequences: int
    cells: int


def _need(request: Request, lane: PoolLane) -> _Need:
    if request.lease is not None and request.lease.lane is lane:
        return _Need(1, 0, request.next_cells - request.lease.cells)
    company = request.company
    return _Need(len(company), len(company), cells_needed(company, lane))


def _longest_copy(ledger: LaneLedger, *, others: int) -> float:
    """Return how many seconds a lane may take to save the cells of one sequence while so many others wait for a step.

    Where that is done in parts, it does not matter how long all of them take.
    """
    if ledger.lane.region.saves_in_parts or not others:
        return math.inf
    return seconds_between(ledger.model.decode_seconds(others))


def _can_be_parked(request: Request) -> bool:
    return request.state is RequestState.RUNNING


def _is_open(lane: PoolLane, lanes: Sequence[PoolLane]) -> bool:
    """Return whether a lane takes requests, and is one of `lanes`."""
    return lane.open and any(lane is one for one in lanes)

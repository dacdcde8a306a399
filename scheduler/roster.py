"""Who runs where: every lease that the scheduler holds is taken, handed on and given back here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from llamalane.ids import Level, RequestId, SequenceId
from llamalane.scheduler.growth import GrowingRow, GrowthPredictor
from llamalane.scheduler.handover import HandoverPolicy
from llamalane.scheduler.lane_roles import LaneRoles
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.placement import best_lane
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.stowage import Stowage
from llamalane.streams import Grant, LaneFailed, Leave, Park, Parking, PoolLane, Rank, SharedPrefix, StreamPool, Trim


class Roster:
    """The requests that hold places or cells of `pool`, and what their lanes have yet to be told."""

    def __init__(
        self,
        pool: StreamPool,
        growth: GrowthPredictor,
        targets: Mapping[Level, float],
        stowage: Stowage,
        handover: HandoverPolicy | None = None,
    ) -> None:
        self.pool = pool
        self.stowage = stowage
        self.ledgers = {lane.name: LaneLedger(lane, targets) for lane in pool.lanes}
        self.roles = LaneRoles(self.ledgers, handover)
        self._growth = growth
        self._running: dict[str, Counter[Level]] = {lane.model: Counter() for lane in pool.lanes}
        """How many requests of each level hold a place on the lanes of each model."""
        self._paused: dict[RequestId, Request] = {}
        self._handed_over: dict[RequestId, Request] = {}

    def __contains__(self, request: RequestId) -> bool:
        return any(request in ledger.running or request in ledger.parking for ledger in self.ledgers.values())

    def __iter__(self) -> Iterator[Request]:
        for ledger in self.ledgers.values():
            yield from ledger.running.values()
            yield from ledger.parking.values()

    def get(self, request: RequestId) -> Request | None:
        """Return the request of that id which a lane computes or is to park, None when there is none."""
        found = (ledger.get(request) for ledger in self.ledgers.values())
        return next((one for one in found if one is not None), None)

    @property
    def running(self) -> Mapping[Level, int]:
        """How many requests of each level hold a place."""
        total: Counter[Level] = Counter()
        for counts in self._running.values():
            total.update(counts)
        return total

    def running_on(self, model: str) -> Mapping[Level, int]:
        """How many requests of each level hold a place on the lanes of a model."""
        return self._running[model]

    @property
    def down(self) -> bool:
        """Whether every lane has given up."""
        return all(ledger.down for ledger in self.ledgers.values())

    def is_down(self, model: str) -> bool:
        """Return whether every lane of a model has given up."""
        return all(ledger.down for ledger in self.ledgers.values() if ledger.lane.model == model)

    @property
    def next_handed_over(self) -> Request | None:
        """The most urgent of the waiting requests that were handed over, None when there is none."""
        return min(self._handed_over.values(), key=lambda request: (request.key, request.order), default=None)

    def ledger(self, request: Request) -> LaneLedger:
        """Return the books of the lane that a request is on."""
        return self.ledgers[request.lane]

    def paused_on(self, ledger: LaneLedger) -> list[Request]:
        """Return the waiting requests whose cells are on a lane."""
        return [request for request in self._paused.values() if request.lane == ledger.lane.name]

    def lane_for(self, request: Request, *, by_share: bool) -> PoolLane | None:
        """Return the lane on which a waiting request can start now; None when none has a place and cells for it.

        A lane whose more urgent rows would then miss their target has none, unless its turn came `by_share`.
        """
        if request.lease is not None:
            lane = request.lease.lane
            more = request.next_cells - request.lease.cells
            if lane.free and lane.region.room >= more and self._welcomes(lane, request, by_share):
                return lane
        company = request.company
        lanes = [
            lane
            for lane in self.lanes_open_to(request, by_share=by_share)
            if (request.lease is None or request.lease.lane is not lane)
            and min(lane.free, lane.region.free) >= len(company)
            and lane.region.room >= cells_needed(company, lane)
        ]
        lanes = [lane for lane in lanes if request.fits_saved(lane)] or lanes
        ledger = best_lane(request, [self.ledgers[lane.name] for lane in lanes], self._growth)
        return None if ledger is None else ledger.lane

    def lanes_open_to(self, request: Request, *, by_share: bool) -> list[PoolLane]:
        """Return the lanes that a request would not overload, whether or not they have room for it just now.

        First come those that can put its saved cells back, if it has any.
        """
        lanes = [lane for lane in self.roles.lanes_for(request) if self._welcomes(lane, request, by_share)]
        return sorted(lanes, key=lambda lane: not request.fits_saved(lane))

    def start(self, request: Request, lane: PoolLane) -> None:
        """Give a waiting request a place on `lane`, or the one back on which it was paused, and tell the lane.

        Saved cells that the lane cannot put back are given up.
        """
        ledger = self.ledgers[lane.name]
        if not request.fits_saved(lane):
            request.saved = None
        self._paused.pop(request.id, None)
        self._handed_over.pop(request.id, None)
        request.share = None
        cells = self.roles.first_cells(request, lane)
        if request.lease is not None and (request.lease.lane is not lane or not request.lease.resume_nowait(cells)):
            self._give_up_cells(request)
        if request.lease is None:
            self._acquire(request, ledger, cells)
        assert request.lease is not None
        self.stowage.carry_out(ledger, request.lease.changes)
        request.lane = lane.name
        request.move(RequestState.RUNNING)
        self._count(request, 1)
        ledger.running[request.id] = request
        ledger.edit(request.join())

    def _acquire(self, request: Request, ledger: LaneLedger, cells: int) -> None:
        """Lease a place on a lane, after what is kept of the prompt elsewhere has been put back there."""
        if request.saved is None and not request.model:
            self.stowage.bring_back(request, ledger, cells)
        tokens = _tokens_to_find(request)
        lease = self.pool.acquire_nowait(tokens, cells=cells, scope=request.scope, lane=ledger.lane)
        if lease.share is not None:
            sequence, length = lease.share.sequence, lease.share.length
            request.share = SharedPrefix(sequence, length, _leader(sequence, ledger))
        request.lease = lease

    def grow(self, request: Request) -> bool:
        """Let a running request fill a block of cells more; False when there are too few."""
        assert request.lease is not None
        if not request.lease.grow_nowait(max(request.lease.cells, request.next_cells)):
            return False
        ledger = self.ledger(request)
        self.stowage.carry_out(ledger, request.lease.changes)
        ledger.edit(Grant(request.id, request.lease.cells))
        return True

    def rank(self, request: Request, level: Level, key: tuple[int, float]) -> None:
        """Give a request that holds a place or cells another level and key, and tell its lane."""
        ledger = self.ledger(request)
        if request.id in ledger.running:
            self._count(request, -1)
            self._running[request.model][level] += 1
            ledger.edit(Rank(request.id, level, (*key, request.order)))
        request.level, request.key = level, key

    def park(self, request: Request, how: Parking) -> None:
        """Take a running request's place, or a paused one's cells, and tell its lane; it waits once that is done."""
        assert request.lease is not None
        ledger = self.ledger(request)
        ledger.edit(Park(request.id, request.lease.sequence, how))
        request.gives_way = ledger.running.pop(request.id, None) is not None
        if request.gives_way:
            self._count(request, -1)
        self._paused.pop(request.id, None)
        ledger.parking[request.id] = request
        if how is Parking.PAUSE:
            request.lease.pause()
        else:
            self.stowage.carry_out(ledger, request.lease.release())
            request.lease = None
        request.move(RequestState.PARKING)

    def hand_over(self, request: Request) -> None:
        """Take a request off a lane for prompts, with its cells, to go on elsewhere; it waits once that is done."""
        self.park(request, Parking.SWAP)
        request.handed_over = True

    def note_parked(self, request: Request) -> None:
        """Take note that a request waits now, after its lane has confirmed."""
        ledger = self.ledger(request)
        del ledger.parking[request.id]
        if request.saved is not None:
            request.saved_form = ledger.lane.region.form
        request.move(RequestState.WAITING)
        if request.lease is not None:
            self._paused[request.id] = request
        if request.handed_over:
            self._handed_over[request.id] = request

    def forget(self, request: Request) -> None:
        """Give up the cells of a waiting request, wherever they are."""
        self._paused.pop(request.id, None)
        self._handed_over.pop(request.id, None)
        request.saved = None
        if request.lease is not None:
            self._give_up_cells(request)

    def stop(self, request: Request) -> None:
        """Tell the lane to drop a running or parking request; what it holds stays until the lane has confirmed."""
        kept: Sequence[int] = ()
        if request.state is RequestState.RUNNING:
            assert request.lease is not None
            kept = self._kept(request)
            request.lease.note_stopped()
        request.move(RequestState.LEAVING)
        self.ledger(request).edit(Leave(request.id, keep=len(kept)))

    def release(self, request: Request, *, exact: bool = False, trimmed: bool = True) -> None:
        """Give back what a request holds that its lane has dropped.

        `exact` tells that the cells hold what the books say to the last token; a model that cannot drop the end of a
        sequence needs that, if the cells are to be used again. Else `trimmed` tells that the lane has removed the rest.
        """
        ledger = self.ledger(request)
        if ledger.running.pop(request.id, None) is None:  # it was to be parked
            del ledger.parking[request.id]
            self.forget(request)
        else:
            assert request.lease is not None
            kept = request.cells_filled() if exact else self._kept(request)
            if not exact and not trimmed:
                ledger.edit(Trim(request.lease.sequence, len(kept)))
            self._give_back(request, kept)
        request.move(RequestState.DONE)

    def lose(self, failure: LaneFailed) -> list[Request]:
        """Take back all that a lane held which lost its context, and return the requests that ran on it."""
        ledger = self.ledgers[failure.lane]
        lost = [*ledger.running.values(), *ledger.parking.values()]
        for request in ledger.running.values():
            self._give_back(request, ())
        for request in [*ledger.parking.values(), *self.paused_on(ledger)]:
            self._paused.pop(request.id, None)
            if request.lease is not None:
                request.lease.release()
                request.lease = None
        ledger.fail(failure)
        self.stowage.forget_lane(failure.lane)
        self.pool.suspend(ledger.lane)
        return lost

    def _welcomes(self, lane: PoolLane, request: Request, by_share: bool) -> bool:
        """Return whether the lane's cells are likely to last if the request starts there, and its rows keep time."""
        ledger = self.ledgers[lane.name]
        if not ledger.running:
            return True
        if not (by_share or request.sheltered) and not ledger.admits(request.level):
            return False
        if request.model or self.roles.prefills(lane):  # nobody grows there
            return True
        others = [one for one in request.company if one is not request]
        rows = [*map(_row, ledger.running.values()), *(_row(one, _beside(one, lane)) for one in others)]
        shared = request.next_cells - cells_needed([request], lane)
        return self._growth.fits(_row(request, shared), rows, lane.region.cells - self._shared_cells(ledger))

    def _shared_cells(self, ledger: LaneLedger) -> int:
        """Return how many of a lane's cells are in use by more than one request, each counted once."""
        region = ledger.lane.region
        own = sum(region.own(one.lease.sequence) for one in self._holders(ledger) if one.lease is not None)
        return region.cells - region.room - own

    def _holders(self, ledger: LaneLedger) -> list[Request]:
        return [*ledger, *self.paused_on(ledger)]

    def _give_up_cells(self, request: Request) -> None:
        assert request.lease is not None
        ledger = self.ledger(request)
        ledger.edit(Trim(request.lease.sequence))
        self.stowage.carry_out(ledger, request.lease.release())
        request.lease = None

    def _kept(self, request: Request) -> Sequence[int]:
        """Return what the cells of a running request will hold once the lane has cut them to it."""
        assert request.lease is not None
        return request.cells_filled() if request.lease.lane.region.can_roll_back else ()

    def _give_back(self, request: Request, kept: Sequence[int]) -> None:
        assert request.lease is not None
        ledger = self.ledger(request)
        if kept:
            self.stowage.note_kept(ledger, request.lease.sequence, request.level)
        self.stowage.carry_out(ledger, request.lease.release(kept))
        request.lease = None
        self._count(request, -1)

    def _count(self, request: Request, change: int) -> None:
        self._running[request.model][request.level] += change


def cells_needed(company: Sequence[Request], lane: PoolLane) -> int:
    """Return by how much a lane's room shrinks when these requests, which have one prompt, start there."""
    first = company[0]
    region = lane.region
    need = region.need(_tokens_to_find(first), first.next_cells, first.scope)
    return need + sum(one.next_cells - _beside(one, lane) for one in company[1:])


def _beside(request: Request, lane: PoolLane) -> int:
    """Return how many cells a request shares with another one of the same prompt."""
    return len(request.tokens) - 1 if lane.region.shares and not request.generated else 0


def _tokens_to_find(request: Request) -> Sequence[int]:
    """Return the tokens of which a lane may hold some; of a request whose cells were saved, none are wanted."""
    return request.findable if request.saved is None else ()


def _leader(sequence: SequenceId, ledger: LaneLedger) -> RequestId | None:
    """Return the request that has yet to compute what a sequence is thought to hold, None when it is there."""
    for request in ledger:
        if request.lease is not None and request.lease.sequence == sequence and not request.since_join:
            return request.id
    return None


def _row(request: Request, shared: int | None = None) -> GrowingRow:
    """Return what a request will need for itself; `shared` of its cells count elsewhere."""
    if shared is None:
        assert request.lease is not None
        shared = request.lease.cells - request.lease.lane.region.own(request.lease.sequence)
    most = len(request.generated) + request.cells - request.length
    return GrowingRow(request.level, request.length - shared, len(request.generated), most)

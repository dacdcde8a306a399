"""Who runs where: every lease that the scheduler holds is taken, handed on and given back here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from llamalane.ids import Level, RequestId
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.request import Request, RequestState
from llamalane.streams import LaneFailed, Leave, StreamPool


class Roster:
    """The requests that hold places of `pool`, and what their lanes have yet to be told."""

    def __init__(self, pool: StreamPool) -> None:
        self.pool = pool
        self.ledgers = {lane.name: LaneLedger(lane) for lane in pool.lanes}
        self._running: Counter[Level] = Counter()

    def __contains__(self, request: RequestId) -> bool:
        return any(request in ledger.running for ledger in self.ledgers.values())

    def __iter__(self) -> Iterator[Request]:
        for ledger in self.ledgers.values():
            yield from ledger.running.values()

    @property
    def running(self) -> Mapping[Level, int]:
        """How many requests of each level hold a place."""
        return self._running

    @property
    def down(self) -> bool:
        """Whether every lane has given up."""
        return all(ledger.down for ledger in self.ledgers.values())

    def start(self, request: Request) -> None:
        """Lease a place for a waiting request, and tell its lane; the pool must have a free one."""
        request.lease = self.pool.acquire_nowait(request.history, cells=request.cells, scope=request.tenant)
        request.lane = request.lease.lane.name
        request.move(RequestState.RUNNING)
        self._running[request.level] += 1
        ledger = self.ledgers[request.lane]
        ledger.running[request.id] = request
        ledger.edit(request.join())

    def stop(self, request: Request) -> None:
        """Tell the lane to drop a running request; its lease stays until the lane has confirmed."""
        request.move(RequestState.LEAVING)
        self.ledgers[request.lane].edit(Leave(request.id, keep=len(request.cells_filled())))

    def release(self, request: Request, *, exact: bool = False) -> None:
        """Give back the place of a request that its lane has dropped.

        `exact` tells that the cells hold what the books say to the last token; a model that cannot drop the end of a
        sequence needs that, if the cells are to be used again.
        """
        assert request.lease is not None
        reusable = exact or request.lease.lane.region.can_roll_back
        del self.ledgers[request.lane].running[request.id]
        self._give_back(request, keep=reusable)
        request.move(RequestState.DONE)

    def lose(self, failure: LaneFailed) -> list[Request]:
        """Take back the places of a lane that lost its context, and return the requests that ran on it."""
        ledger = self.ledgers[failure.lane]
        lost = ledger.fail(failure)
        for request in lost:
            self._give_back(request, keep=False)
        self.pool.suspend(ledger.lane)
        return lost

    def _give_back(self, request: Request, *, keep: bool) -> None:
        assert request.lease is not None
        request.lease.release(request.cells_filled() if keep else ())
        request.lease = None
        self._running[request.level] -= 1

"""The books that the requests of a scheduler are entered in, how a request leaves them, and who hears of it."""

from __future__ import annotations

from collections.abc import Iterator

from llamalane.clock import Clock
from llamalane.errors import LaneDownError, LlamalaneError
from llamalane.ids import RequestId
from llamalane.scheduler.counters import Counters
from llamalane.scheduler.deadlines import Deadlines
from llamalane.scheduler.delivery import Ending
from llamalane.scheduler.embedding_request import EmbeddingRequest
from llamalane.scheduler.events import Event, EventKind, Observer
from llamalane.scheduler.foresight import Foresight
from llamalane.scheduler.limits import TenantLimits
from llamalane.scheduler.measurements import Measurements
from llamalane.scheduler.queue import WaitingQueue
from llamalane.scheduler.recorder import FlightRecorder
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.returns import PromisedReturns
from llamalane.scheduler.roster import Roster
from llamalane.scheduler.rules import Rules
from llamalane.scheduler.supersede import LatestRequests
from llamalane.scheduler.waits import WaitPredictor
from llamalane.streams import StreamPool

UNFINISHED = (RequestState.WAITING, RequestState.RUNNING, RequestState.PARKING)


class RequestBooks:
    """Every request of a scheduler, and all books that its life is entered in."""

    def __init__(self, pool: StreamPool, rules: Rules, *, clock: Clock, observer: Observer | None) -> None:
        self.counters = Counters()
        self.measurements = Measurements(pool.limit)
        self._returns = PromisedReturns()
        self._waits = {lane.model: WaitPredictor(self._returns) for lane in pool.lanes}
        self.queue = WaitingQueue[Request](
            rules.bounds,
            lambda level, slots: self.queue_waits.retry_after(level, clock.now(), slots),
            rules.weights,
            may_shed=_may_be_shed,
            kept=lambda level: self._returns.ask(level, clock.now()),
            line_of=lambda request: request.model,
        )
        self._targets = dict(rules.targets)
        self.roster = Roster(pool, rules.growth, self._targets, rules.stowage, rules.handover)
        self.recorder = FlightRecorder(self.roster.ledgers, clock.now())
        self.deadlines = Deadlines()
        self._foresight = Foresight(self.roster, rules.growth)
        self._limits = TenantLimits(rules.limits, rules.default_limit)
        self._latest = LatestRequests[Request]()
        self._rules = rules
        self._clock = clock
        self._observer = observer

    @property
    def idle(self) -> bool:
        """Whether no request waits or holds anything, and no lane saves anything."""
        return not len(self.queue) and not any(self.roster) and self.roster.stowage.idle

    @property
    def queue_waits(self) -> WaitPredictor:
        """What foretells when slots of the queue come free: as those leave it who are the most in it."""
        return self._waits.get(self.queue.longest_line) or next(iter(self._waits.values()))

    def waits_for(self, model: str) -> WaitPredictor:
        """Return what foretells when places come free on the lanes of a model."""
        return self._waits[model]

    def __iter__(self) -> Iterator[Request]:
        yield from self.queue
        yield from self.roster

    def find(self, request_id: RequestId) -> Request:
        """Return the request of that id; raises `KeyError` unless it waits or runs."""
        request = self.queue.get(request_id) or self.roster.get(request_id)
        if request is None or request.state not in UNFINISHED:
            raise KeyError(request_id)
        return request

    # Endings

    def end(self, request: Request, error: LlamalaneError) -> None:
        """End a request that has not ended with an error, from outside its lane."""
        if request.state is RequestState.WAITING:
            self.queue.remove(request)
            self._forget_saved(request)
            self.roster.forget(request)
            request.move(RequestState.DONE)
        else:
            self.roster.stop(request)
        self._conclude(request, error)

    def end_all(self, error: LlamalaneError, model: str | None = None) -> None:
        """End every request that has not ended, each with `error`; only those that want a model, if one is named."""
        for request in list(self):
            if request.state in UNFINISHED and model in (None, request.model):
                self.counters.failed += 1
                self.end(request, error)

    def _release(self, request: Request, *, exact: bool = False, trimmed: bool = True) -> None:
        self.waits_for(request.model).observe_release(request.id, self._clock.now())
        self.roster.release(request, exact=exact, trimmed=trimmed)

    def _conclude(self, request: Request, outcome: Ending) -> None:
        self._leave_books(request)
        request.delivery.close(outcome)
        self.tell(EventKind.ENDED, request)
        self.recorder.note_end(request)

    def _leave_books(self, request: Request) -> None:
        self._latest.forget(request)
        if request.gang is not None:
            request.gang.leave(request)
        if request.permit is not None:
            used = len(request.tokens) + len(request.generated) if request.admitted_at is not None else 0
            request.permit.release(max(0, request.permit.tokens - used), self._clock.now())

    def _forget_saved(self, request: Request) -> None:
        if request.saved is not None:
            self._rules.costs.forget(len(request.saved.data))

    # News

    def tell(self, kind: EventKind, request: Request) -> None:
        """Enter an event into a request's life, and tell the observer."""
        now = self._clock.now()
        request.events.append((kind, now))
        self.recorder.note_change(request)
        self.note(Event(now, kind, request.id, request.lane))

    def note(self, event: Event) -> None:
        """Tell the observer of an event."""
        if self._observer is not None:
            self._observer(event)


def lane_down(model: str = "") -> LaneDownError:
    """Return the error of a scheduler without lanes for a model."""
    lanes = f"every lane of the model {model!r}" if model else "every lane"
    return LaneDownError(f"{lanes} has failed too often in a row; restart the engine")


def _may_be_shed(request: Request) -> bool:
    """Return whether a waiting request can be turned out: who has begun to answer, or is sheltered, cannot."""
    begun = request.begun if isinstance(request, EmbeddingRequest) else request.first_token_at is not None
    return not (begun or request.sheltered)

"""The scheduler loop: receive, plan, dispatch.

It owns the queue, the places and every request; all of it happens on the event loop, and nothing here waits but the
loop itself, for news. Lanes work on by themselves meanwhile, and tell what they did through `receive_from_lane`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from llamalane.clock import Clock
from llamalane.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    LaneDownError,
    LlamalaneError,
    RequestCancelledError,
    RequestFailedError,
)
from llamalane.ids import Level
from llamalane.scheduler.admission import Choice
from llamalane.scheduler.counters import Counters
from llamalane.scheduler.deadlines import Deadlines
from llamalane.scheduler.doorbell import Doorbell
from llamalane.scheduler.events import Event, EventKind, Observer
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.queue import Slot, WaitingQueue
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.result import Result
from llamalane.scheduler.room import RoomMaker
from llamalane.scheduler.roster import Roster
from llamalane.scheduler.rules import Rules
from llamalane.scheduler.waits import WaitEstimator
from llamalane.streams import (
    LaneFailed,
    LaneMessage,
    LaneReady,
    Parked,
    Parking,
    PoolLane,
    RowOutput,
    StepReport,
    StreamPool,
)

MAX_RESTARTS = 3
"""A request under which its lane failed so often is given up: it may be the cause."""
_UNFINISHED = (RequestState.WAITING, RequestState.RUNNING, RequestState.PARKING)


class Scheduler:
    """Decides whose tokens come next on the lanes of `pool`."""

    def __init__(self, pool: StreamPool, rules: Rules, *, clock: Clock, observer: Observer | None = None) -> None:
        self.pool = pool
        self.counters = Counters()
        self._rules = rules
        self._waits = WaitEstimator(pool.places)
        self.queue = WaitingQueue[Request](rules.max_requests, rules.max_tokens, self._waits.retry_after, rules.weights)
        self._roster = Roster(pool, rules.growth, rules.targets)
        self._room = RoomMaker(self._roster, rules.displacement, rules.costs, self._note_parking)
        self._deadlines = Deadlines()
        self._clock = clock
        self._observer = observer
        self._messages: deque[LaneMessage] = deque()
        self._doorbell: Doorbell | None = None
        self._waiting_for_idle: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Schedule until cancelled."""
        self._doorbell = Doorbell()
        while True:
            self.tick()
            await self._doorbell.wait(self._deadlines.seconds_left(self._clock.now()))

    def tick(self) -> None:
        """Take what lanes and clock have to say, admit whom there is room for, and tell the lanes."""
        self._receive()
        self._plan()
        self._dispatch()

    def receive_from_lane(self, message: LaneMessage) -> None:
        """Take a lane's message; on the lane's thread."""
        self._messages.append(message)
        if self._doorbell is not None:
            self._doorbell.ring_from_thread()

    @property
    def ledgers(self) -> Mapping[str, LaneLedger]:
        """The books of each lane."""
        return self._roster.ledgers

    @property
    def running(self) -> Mapping[Level, int]:
        """How many requests of each level hold a place."""
        return self._roster.running

    @property
    def idle(self) -> bool:
        """Whether no request waits or holds anything."""
        return not len(self.queue) and not any(self._roster)

    @property
    def down(self) -> bool:
        """Whether every lane has given up."""
        return self._roster.down

    def submit(self, request: Request, slot: Slot[Request]) -> None:
        """Let a request wait in its slot.

        Raises `QueueFullError`, `LaneDownError`, or `InvalidRequestError` when there is one of the same id.
        """
        if self.down:
            raise _lane_down()
        if request.id in self.queue or request.id in self._roster:
            raise InvalidRequestError(f"there is a request {request.id} already", param="request_id")
        slot.fill(request)
        self._deadlines.watch(request, unfinished=len(self.queue) + self.pool.places)
        self._tell(EventKind.ACCEPTED, request)
        self._wake()

    def cancel(self, request: Request) -> None:
        """End a request for its client's sake; nothing happens when it has ended."""
        if request.state in _UNFINISHED:
            self.counters.cancelled += 1
            self._end(request, RequestCancelledError(f"request {request.id} was cancelled"))
            self._wake()

    def end_all(self, error: LlamalaneError) -> None:
        """End every request that has not ended, each with `error`."""
        for request in [*self.queue, *self._roster]:
            if request.state in _UNFINISHED:
                self.counters.failed += 1
                self._end(request, error)
        self._wake()

    def release_all(self) -> None:
        """Release the leases that are left, and tell whoever waits for idleness; no lane may be running any more."""
        for request in list(self._roster):
            self._roster.release(request)
        self._tell_idle()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as the scheduler is idle."""
        self._waiting_for_idle.append(callback)
        self._wake()

    # Receive

    def _receive(self) -> None:
        while self._messages:
            message = self._messages.popleft()
            if isinstance(message, StepReport):
                self._on_step(message)
            elif isinstance(message, LaneFailed):
                self._on_failure(message)
            else:
                self._on_ready(message)
        for request in self._deadlines.passed(self._clock.now()):
            if request.state in _UNFINISHED:
                self.counters.expired += 1
                self._end(request, DeadlineExceededError(request.deadline_after))

    def _on_step(self, report: StepReport) -> None:
        ledger = self.ledgers[report.lane]
        ledger.observe(report, self._clock.now())
        if report.times is not None:
            self._note(Event(report.times.begin, EventKind.STEP, lane=report.lane, step=report.step))
        for request_id in report.started:
            self._note(Event(self._clock.now(), EventKind.STARTED, request_id, report.lane, report.step))
        for request_id in report.left:
            request = ledger.get(request_id)
            if request is not None:
                self._release(request)
        for parked in report.parked:
            request = ledger.parking.get(parked.request)
            if request is not None and request.state is RequestState.PARKING:
                self._on_parked(request, parked)
        for output in report.outputs:
            request = ledger.get(output.request)
            if request is not None:
                self._on_output(request, output)

    def _on_parked(self, request: Request, parked: Parked) -> None:
        if not self._rules.costs.observe(parked):
            parked = replace(parked, saved=None)
        request.note_parked(parked)
        self._roster.note_parked(request)
        self.queue.requeue(request)
        self._tell(EventKind.PARKED, request)

    def _on_output(self, request: Request, output: RowOutput) -> None:
        running = request.state in _UNFINISHED
        if running:
            if output.error is not None:
                self.counters.failed += 1
                self._conclude(request, output.error)
            else:
                self._on_token(request, output)
        if output.ended:
            # A row that should have left went on past what the books know.
            self._release(request, exact=running and output.error is None, trimmed=False)

    def _on_token(self, request: Request, output: RowOutput) -> None:
        now = self._clock.now()
        self.counters.completion_tokens += 1
        self.queue.fairness.charge(request.level, request.tenant, output_tokens=1)
        finish = request.accept(output.token, output.finish, now)
        if finish is None:
            return
        self.counters.finished += 1
        self._rules.growth.observe(request.level, len(request.generated))
        self._conclude(request, request.result(finish, now))
        if not output.ended:  # a stop string, which the lane does not know of
            self._roster.stop(request)

    def _on_failure(self, failure: LaneFailed) -> None:
        self._note(Event(self._clock.now(), EventKind.LANE_FAILED, lane=failure.lane))
        for request in self._roster.lose(failure):
            if request.state in _UNFINISHED:
                self._restart(request, failure.error)
            else:
                request.move(RequestState.DONE)
        if self.down:
            self.end_all(_lane_down())

    def _restart(self, request: Request, error: LlamalaneError) -> None:
        request.restarts += 1
        if request.restarts >= MAX_RESTARTS and not self.down:
            self.counters.failed += 1
            request.move(RequestState.DONE)
            failed = RequestFailedError(f"its lane failed {request.restarts} times under request {request.id}: {error}")
            self._conclude(request, failed)
            return
        self.counters.restarts += 1
        request.move(RequestState.WAITING)
        self.queue.requeue(request)
        self._tell(EventKind.REQUEUED, request)

    def _on_ready(self, message: LaneReady) -> None:
        self.pool.resume(self.ledgers[message.lane].lane)
        self._note(Event(self._clock.now(), EventKind.LANE_READY, lane=message.lane))

    # Plan

    def _plan(self) -> None:
        for ledger in self.ledgers.values():
            if ledger.running:
                self._room.feed(ledger)
        while (admission := self._next()) is not None:
            self._admit(*admission)
        self._tell_idle()

    def _next(self) -> tuple[Choice[Request], PoolLane] | None:
        """Return who starts next, and where: on a free place, or else in the room of somebody less urgent."""
        choice = self._rules.admission.choose(self.queue, self.pool.free, self.running)
        if choice is not None:
            lane = self._room.find_room(choice.request, by_share=choice.by_share)
            if lane is not None:
                return choice, lane
        urgent = self._rules.admission.most_urgent(self.queue)
        if urgent is not None:
            lane = self._room.make_room(urgent.request)
            if lane is not None:
                return urgent, lane
        return None

    def _tell_idle(self) -> None:
        if self._waiting_for_idle and self.idle:
            callbacks, self._waiting_for_idle = self._waiting_for_idle, []
            for callback in callbacks:
                callback()

    def _admit(self, choice: Choice[Request], lane: PoolLane) -> None:
        request = choice.request
        self._rules.admission.admitted(choice)
        self.queue.remove(request)
        self._forget_saved(request)
        request.sheltered = request.sheltered or choice.by_share
        self._roster.start(request, lane)
        if request.note_admission(self._clock.now()):
            self.counters.admitted += 1
            self.counters.prompt_tokens += len(request.tokens)
            self.counters.cached_tokens += request.cached
            self.queue.fairness.charge(request.level, request.tenant, prompt_tokens=len(request.tokens))
        self._tell(EventKind.ADMITTED, request)

    def _note_parking(self, request: Request, how: Parking) -> None:
        self.counters.parks[how.value] += 1
        if request.state is RequestState.WAITING and how is Parking.SWAP:
            self.queue.remove(request)

    # Dispatch

    def _dispatch(self) -> None:
        now = self._clock.now()
        for ledger in self.ledgers.values():
            step = ledger.step_to_abandon(now, self._rules.abort_after)
            plan = ledger.next_plan(now)
            if plan is not None:
                ledger.lane.backend.post(plan)
            if step is not None:
                ledger.lane.backend.abandon(step)

    # Endings

    def _end(self, request: Request, error: LlamalaneError) -> None:
        """End a waiting or running request with an error, from outside its lane."""
        if request.state is RequestState.WAITING:
            self.queue.remove(request)
            self._forget_saved(request)
            self._roster.forget(request)
            request.move(RequestState.DONE)
        else:
            self._roster.stop(request)
        self._conclude(request, error)

    def _release(self, request: Request, *, exact: bool = False, trimmed: bool = True) -> None:
        self._roster.release(request, exact=exact, trimmed=trimmed)
        if request.admitted_at is not None:
            self._waits.observe(self._clock.now() - request.admitted_at)

    def _forget_saved(self, request: Request) -> None:
        if request.saved is not None:
            self._rules.costs.forget(len(request.saved.data))

    def _conclude(self, request: Request, outcome: Result | LlamalaneError) -> None:
        request.delivery.close(outcome)
        self._tell(EventKind.ENDED, request)

    # News

    def _wake(self) -> None:
        if self._doorbell is not None:
            self._doorbell.ring()

    def _tell(self, kind: EventKind, request: Request) -> None:
        self._note(Event(self._clock.now(), kind, request.id, request.lane))

    def _note(self, event: Event) -> None:
        if self._observer is not None:
            self._observer(event)


def _lane_down() -> LaneDownError:
    return LaneDownError("every lane has failed too often in a row; restart the engine")

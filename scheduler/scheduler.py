"""The scheduler loop: receive, plan, dispatch.

It owns the queue, the pool and every request; all of it happens on the event loop, and nothing here waits but the loop
itself, for news. Lanes work on by themselves meanwhile, and tell what they did through `receive_from_lane`.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping

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
from llamalane.scheduler.admission import AdmissionPolicy, Choice
from llamalane.scheduler.counters import Counters
from llamalane.scheduler.doorbell import Doorbell
from llamalane.scheduler.events import Event, EventKind, Observer
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.queue import Slot, WaitingQueue
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.result import Result, Timings, Usage
from llamalane.scheduler.waits import WaitEstimator
from llamalane.streams import (
    FinishReason,
    LaneFailed,
    LaneMessage,
    LaneReady,
    Leave,
    RowOutput,
    StepReport,
    StreamPool,
)

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""A request under which its lane failed so often is given up: it may be the cause."""


class Scheduler:
    """Decides whose tokens come next on the lanes of `pool`.

    `target_itl` is the time in seconds that a step should not exceed on account of prompts.
    """

    def __init__(
        self,
        pool: StreamPool,
        policy: AdmissionPolicy,
        *,
        max_requests: int,
        max_tokens: int,
        target_itl: float,
        clock: Clock,
        observer: Observer | None = None,
    ) -> None:
        self.pool = pool
        self.waits = WaitEstimator(pool.places)
        self.queue = WaitingQueue(max_requests, max_tokens, self.waits.retry_after)
        self.ledgers = {lane.name: LaneLedger(lane) for lane in pool.lanes}
        self.counters = Counters()
        self._policy = policy
        self._target_itl = target_itl
        self._clock = clock
        self._observer = observer
        self._running: Counter[Level] = Counter()
        self._messages: deque[LaneMessage] = deque()
        self._deadlines: list[tuple[float, int, Request]] = []
        self._doorbell: Doorbell | None = None
        self._waiting_for_idle: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Schedule until cancelled."""
        self._doorbell = Doorbell()
        while True:
            self.tick()
            await self._doorbell.wait(self._seconds_to_deadline())

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
    def running(self) -> Mapping[Level, int]:
        """How many requests of each level hold a place."""
        return self._running

    @property
    def idle(self) -> bool:
        """Whether no request waits or holds a place."""
        return not len(self.queue) and not self.pool.leased

    @property
    def down(self) -> bool:
        """Whether every lane has given up."""
        return all(ledger.down for ledger in self.ledgers.values())

    def submit(self, request: Request, slot: Slot) -> None:
        """Let a request wait in its slot; raises `QueueFullError`, `LaneDownError`, or `InvalidRequestError` for its id."""
        if self.down:
            raise self._lane_down()
        if request.id in self.queue or any(request.id in ledger.running for ledger in self.ledgers.values()):
            raise InvalidRequestError(f"there is a request {request.id} already", param="request_id")
        slot.fill(request)
        if request.deadline is not None:
            self._watch(request, request.deadline)
        self._tell(EventKind.ACCEPTED, request)
        self._wake()

    def cancel(self, request: Request) -> None:
        """End a request for its client's sake; nothing happens when it has ended."""
        if request.state in (RequestState.WAITING, RequestState.RUNNING):
            self.counters.cancelled += 1
            self._end(request, RequestCancelledError(f"request {request.id} was cancelled"))
            self._wake()

    def end_all(self, error: LlamalaneError) -> None:
        """End every request that has not ended, each with `error`."""
        running = [request for ledger in self.ledgers.values() for request in ledger.running.values()]
        for request in [*self.queue, *running]:
            if request.state in (RequestState.WAITING, RequestState.RUNNING):
                self.counters.failed += 1
                self._end(request, error)
        self._wake()

    def release_all(self) -> None:
        """Release the leases that are left; no lane may be running any more."""
        for ledger in self.ledgers.values():
            for request in list(ledger.running.values()):
                self._release(ledger, request)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as the scheduler is idle."""
        self._waiting_for_idle.append(callback)
        self._wake()

    def _watch(self, request: Request, deadline: float) -> None:
        """Keep an eye on a deadline. Requests that have ended are forgotten when they outnumber the others."""
        heapq.heappush(self._deadlines, (deadline, request.order, request))
        if len(self._deadlines) > 2 * (len(self.queue) + self.pool.leased) + 16:
            self._deadlines = [entry for entry in self._deadlines if entry[2].delivery.outcome is None]
            heapq.heapify(self._deadlines)

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
        self._expire()

    def _on_step(self, report: StepReport) -> None:
        ledger = self.ledgers[report.lane]
        ledger.observe(report)
        if report.times is not None:
            self._note(Event(report.times.begin, EventKind.STEP, lane=report.lane, step=report.step))
        for request_id in report.started:
            self._note(Event(self._clock.now(), EventKind.STARTED, request_id, report.lane, report.step))
        for request_id in report.left:
            request = ledger.running.get(request_id)
            if request is not None:
                self._release(ledger, request)
        for output in report.outputs:
            self._on_output(ledger, output)

    def _on_output(self, ledger: LaneLedger, output: RowOutput) -> None:
        request = ledger.running.get(output.request)
        if request is None:
            return
        running = request.state is RequestState.RUNNING
        if running:
            if output.error is not None:
                self.counters.failed += 1
                self._conclude(request, output.error)
            else:
                self._on_token(ledger, request, output)
        if output.ended:
            # A row that should have left went on past what the books know.
            self._release(ledger, request, exact=running and output.error is None)

    def _on_token(self, ledger: LaneLedger, request: Request, output: RowOutput) -> None:
        if request.first_token_at is None:
            request.first_token_at = self._clock.now()
        self.counters.completion_tokens += 1
        finish = request.accept(output.token, output.finish)
        if finish is None:
            return
        self._conclude(request, self._result(request, finish))
        self.counters.finished += 1
        if not output.ended:  # a stop string, which the lane does not know of
            self._leave(ledger, request)

    def _on_failure(self, failure: LaneFailed) -> None:
        ledger = self.ledgers[failure.lane]
        self._note(Event(self._clock.now(), EventKind.LANE_FAILED, lane=failure.lane))
        for request in ledger.fail(failure):
            assert request.lease is not None
            request.lease.release()
            request.lease = None
            self._running[request.level] -= 1
            if request.state is RequestState.RUNNING:
                self._restart(request, failure.error)
            else:
                request.move(RequestState.DONE)
        self.pool.suspend(ledger.lane)
        if self.down:
            self.end_all(self._lane_down())

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

    def _expire(self) -> None:
        now = self._clock.now()
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if request.state in (RequestState.WAITING, RequestState.RUNNING):
                self.counters.expired += 1
                self._end(request, DeadlineExceededError(request.deadline_after))

    # Plan

    def _plan(self) -> None:
        while self.pool.free:
            choice = self._policy.choose(self.queue, self.pool.free, self._running)
            if choice is None:
                break
            self._admit(choice)
        if self._waiting_for_idle and self.idle:
            callbacks, self._waiting_for_idle = self._waiting_for_idle, []
            for callback in callbacks:
                callback()

    def _admit(self, choice: Choice) -> None:
        request = choice.request
        self._policy.admitted(choice)
        self.queue.remove(request)
        tokens = [*request.tokens, *request.generated]
        request.lease = self.pool.acquire_nowait(tokens, cells=request.cells, scope=request.tenant)
        request.lane = request.lease.lane.name
        request.sheltered = choice.by_share
        request.move(RequestState.RUNNING)
        if request.admitted_at is None:
            request.admitted_at = self._clock.now()
            request.cached = request.lease.cached
            self.counters.admitted += 1
            self.counters.prompt_tokens += len(request.tokens)
            self.counters.cached_tokens += request.cached
        self._running[request.level] += 1
        ledger = self.ledgers[request.lane]
        ledger.running[request.id] = request
        ledger.edit(request.join())
        self._tell(EventKind.ADMITTED, request)

    # Dispatch

    def _dispatch(self) -> None:
        for ledger in self.ledgers.values():
            plan = ledger.next_plan(self._target_itl)
            if plan is not None:
                ledger.lane.backend.post(plan)

    # Endings

    def _end(self, request: Request, error: LlamalaneError) -> None:
        """End a waiting or running request with an error, from outside its lane."""
        if request.state is RequestState.WAITING:
            self.queue.remove(request)
            request.move(RequestState.DONE)
        else:
            self._leave(self.ledgers[request.lane], request)
        self._conclude(request, error)

    def _leave(self, ledger: LaneLedger, request: Request) -> None:
        """Ask the lane to drop a request; its lease stays until the lane has confirmed."""
        request.move(RequestState.LEAVING)
        ledger.edit(Leave(request.id, keep=len(request.cells_filled())))

    def _release(self, ledger: LaneLedger, request: Request, *, exact: bool = False) -> None:
        """Give back the place of a request that its lane has dropped.

        `exact` tells that the cells hold what the books say to the last token; a model that cannot drop the end of a
        sequence needs that, if the cells are to be used again.
        """
        assert request.lease is not None
        reusable = exact or request.lease.lane.region.can_roll_back
        request.lease.release(request.cells_filled() if reusable else ())
        request.lease = None
        request.move(RequestState.DONE)
        self._running[request.level] -= 1
        del ledger.running[request.id]
        if request.admitted_at is not None:
            self.waits.observe(self._clock.now() - request.admitted_at)

    def _conclude(self, request: Request, outcome: Result | LlamalaneError) -> None:
        request.delivery.close(outcome)
        self._tell(EventKind.ENDED, request)

    def _result(self, request: Request, finish: FinishReason) -> Result:
        assert request.admitted_at is not None
        assert request.first_token_at is not None
        assert request.sampling.seed is not None
        return Result(
            id=request.id,
            text=request.output.text,
            tokens=tuple(request.generated),
            finish_reason=finish,
            usage=Usage(len(request.tokens), len(request.generated), request.cached),
            timings=Timings(
                wait=request.admitted_at - request.arrival,
                first_token=request.first_token_at - request.arrival,
                total=self._clock.now() - request.arrival,
                lane=request.lane,
                restarts=request.restarts,
            ),
            seed=request.sampling.seed,
            level=request.level,
        )

    def _lane_down(self) -> LaneDownError:
        return LaneDownError("every lane has failed too often in a row; restart the engine")

    def _seconds_to_deadline(self) -> float | None:
        return max(0.0, self._deadlines[0][0] - self._clock.now()) if self._deadlines else None

    def _wake(self) -> None:
        if self._doorbell is not None:
            self._doorbell.ring()

    def _tell(self, kind: EventKind, request: Request) -> None:
        if self._observer is not None:
            self._observer(Event(self._clock.now(), kind, request.id, request.lane))

    def _note(self, event: Event) -> None:
        if self._observer is not None:
            self._observer(event)

"""What happens to a request from its submission to its end, and who has to hear of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llamalane.clock import Clock
from llamalane.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    LaneDownError,
    LlamalaneError,
    RequestCancelledError,
    RequestFailedError,
    RequestShedError,
    SupersededError,
)
from llamalane.ids import Level, RequestId
from llamalane.scheduler.admission import Choice
from llamalane.scheduler.counters import Counters
from llamalane.scheduler.deadlines import Deadlines
from llamalane.scheduler.delivery import Ending
from llamalane.scheduler.embedding_request import EmbeddingRequest
from llamalane.scheduler.events import Event, EventKind, Observer
from llamalane.scheduler.foresight import Foresight
from llamalane.scheduler.limits import TenantLimits, TenantPermit
from llamalane.scheduler.measurements import Measurements
from llamalane.scheduler.queue import Slot, WaitingQueue
from llamalane.scheduler.recorder import FlightRecorder
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.returns import PromisedReturns
from llamalane.scheduler.room import ParkReason
from llamalane.scheduler.roster import Roster
from llamalane.scheduler.rules import Rules, bounds_of, limit_of, limits_of, targets_of, weights_of
from llamalane.scheduler.supersede import LatestRequests
from llamalane.scheduler.waits import WaitPredictor
from llamalane.streams import Copied, LaneFailed, Parked, Parking, PoolLane, RowOutput, StepReport, StreamPool

if TYPE_CHECKING:
    from llamalane.scheduler.config import SchedulerConfig
    from llamalane.streams.llama import Vector

MAX_RESTARTS = 3
"""A request under which its lane failed so often is given up: it may be the cause."""
UNFINISHED = (RequestState.WAITING, RequestState.RUNNING, RequestState.PARKING)


class Lifecycle:
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

    # From a client

    def submit(self, requests: Sequence[Request], slots: Sequence[Slot[Request]]) -> None:
        """Let requests wait, each in its slot: all or none; raises what `Scheduler.submit` raises."""
        now = self._clock.now()
        latest_starts = [self._check(request, now) for request in requests]
        wanted = [self._foresight.tokens_wanted(request) for request in requests]
        if not requests[0].model:  # else it was charged before, with all that comes after it
            self._limits.check(requests[0].tenant, wanted)
        shed: dict[Request, None] = {}
        try:
            for request, slot, tokens in zip(requests, slots, wanted, strict=True):
                self._supersede(request)
                if not request.model:
                    request.permit = self._limits.enter_nowait(request.tenant, tokens, now)
                shed.update(dict.fromkeys(slot.fill(request)))
        except LlamalaneError:
            for request in requests:
                self._leave_books(request)
                if request.id in self.queue:
                    self.queue.remove(request)
            raise
        for victim in shed:
            self.counters.rejected["shed"] += 1
            self.end(victim, RequestShedError(self.queue_waits.retry_after(victim.level, now)))
        for request, latest_start in zip(requests, latest_starts, strict=True):
            if request.gang is not None:
                request.gang.join(request)
            self._accept(request, latest_start)

    def follow(self, request: Request) -> None:
        """Let a request wait that comes for one which has ended, of the same client; the bounds do not apply."""
        self.queue.requeue(request)
        self._accept(request, self._foresight.latest_start(request))

    def enter(self, tenant: str, tokens: int) -> TenantPermit:
        """Charge a tenant for work of several requests, which have no permits of their own.

        Raises `TenantLimitError`, or `InvalidRequestError` for more than a minute's tokens.
        """
        bound = self._limits.limit(tenant).tokens_per_minute
        if bound is not None and tokens > bound:
            raise InvalidRequestError(
                f"the inputs have {tokens} tokens, and the tenant may use {bound} tokens a minute: send fewer at once",
                param="input",
            )
        return self._limits.enter_nowait(tenant, tokens, self._clock.now())

    def _accept(self, request: Request, latest_start: float) -> None:
        self.deadlines.watch(request, latest_start)
        self.waits_for(request.model).observe_arrival(request.level, self._clock.now())
        self.tell(EventKind.ACCEPTED, request)

    def _check(self, request: Request, now: float) -> float:
        """Raise what keeps a request from waiting at all; returns the moment by which it must have started."""
        if self.roster.is_down(request.model):
            raise lane_down(request.model)
        if request.id in self.queue or request.id in self.roster:
            raise InvalidRequestError(f"there is a request {request.id} already", param="request_id")
        latest_start = self._foresight.latest_start(request)
        if latest_start <= now:
            self.counters.rejected["deadline"] += 1
            self.counters.deadlines_missed["refused"] += 1
            raise DeadlineExceededError(request.deadline_after)
        return latest_start

    def cancel(self, request: Request) -> None:
        """End a request for its client's sake, if it has not ended."""
        if request.state in UNFINISHED:
            self.counters.cancelled += 1
            self.end(request, RequestCancelledError(f"request {request.id} was cancelled"))

    def find(self, request_id: RequestId) -> Request:
        """Return the request of that id; raises `KeyError` unless it waits or runs."""
        request = self.queue.get(request_id) or self.roster.get(request_id)
        if request is None or request.state not in UNFINISHED:
            raise KeyError(request_id)
        return request

    def set_level(self, request: Request, level: Level) -> None:
        """Give an unfinished request another level, as if it had been submitted at it; its waiting counts as before.

        Choices that have yet to start together with it get the same.
        """
        for one in request.company:
            key = self._rules.aging.key(level, one.arrival)
            waits = one.id in self.queue
            if waits:
                self.queue.remove(one)
                one.level, one.key = level, key
                self.queue.requeue(one)
            else:
                self.roster.rank(one, level, key)
            self.tell(EventKind.PRIORITIZED, one)

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

    def end_late(self) -> None:
        """End the requests whose deadline has passed, or cannot be met any more."""
        now = self._clock.now()
        for request in self.deadlines.passed(now):
            if request.state not in UNFINISHED:
                continue
            latest_start = self._foresight.latest_start(request)
            if latest_start > now:  # it has started, or would take less time than it was thought to
                self.deadlines.watch(request, latest_start)
            else:
                self.counters.expired += 1
                self.counters.deadlines_missed["waiting" if request.admitted_at is None else "running"] += 1
                self.end(request, DeadlineExceededError(request.deadline_after))

    def end_all(self, error: LlamalaneError, model: str | None = None) -> None:
        """End every request that has not ended, each with `error`; only those that want a model, if one is named."""
        for request in list(self):
            if request.state in UNFINISHED and model in (None, request.model):
                self.counters.failed += 1
                self.end(request, error)

    def reload(self, settings: SchedulerConfig) -> None:
        """Go by the limits, weights, bounds and targets of `settings` from now on; nothing that is there ends."""
        self.queue.bounds = bounds_of(settings)
        self.queue.fairness.weights.become(weights_of(settings))
        self._limits.set_limits(limits_of(settings), limit_of(settings.other_tenants), self._clock.now())
        self._targets.update(targets_of(settings))

    # From the scheduler

    def admit(self, choice: Choice[Request], lane: PoolLane) -> None:
        """Let a waiting request run on `lane`, which has room for it."""
        request, now = choice.request, self._clock.now()
        if not request.handed_over:  # else it was counted when it got its first place
            self._rules.admission_for(request.model).admitted(choice)
            self._count_turn(choice)
        self.queue.remove(request)
        if request.saved is not None and request.fits_saved(lane):
            self.counters.parked_bytes_in += len(request.saved.data)
        self._forget_saved(request)
        request.sheltered = request.sheltered or choice.by_share
        if request.gang is not None:
            request.gang.leave(request)
        self.roster.start(request, lane)
        self.waits_for(request.model).observe_admission(request.id, request.level, now)
        if request.note_admission(now):
            self.counters.admitted += 1
            self.counters.prompt_tokens += len(request.tokens)
            self.counters.cached_tokens += request.cached
            self.measurements.at(request.level).note_admission(request, now)
            fairness = self.queue.line(request.model).fairness
            fairness.charge(request.level, request.tenant, prompt_tokens=len(request.tokens))
        self.tell(EventKind.ADMITTED, request)

    def _count_turn(self, choice: Choice[Request]) -> None:
        """Count an admission that was not the most urgent level's turn, and why it was not."""
        measurements = self.measurements.at(choice.request.level)
        if choice.by_share:
            measurements.by_share += 1
        elif any(size for level, size in self.queue.sizes.items() if level < choice.request.level):
            measurements.promoted += 1

    def note_parking(self, request: Request, how: Parking, reason: ParkReason) -> None:
        """Take note that a request is about to lose its place, or a paused one its cells."""
        self.counters.parks[how.value] += 1
        self.counters.reasons[reason.value] += 1
        if request.state is RequestState.RUNNING:
            self.measurements.at(request.level).parked += 1
            self.waits_for(request.model).observe_release(request.id, self._clock.now(), finished=False)
        elif how is Parking.SWAP:  # until its cells are saved it cannot go on
            self.queue.remove(request)

    # From a lane

    def on_step(self, report: StepReport) -> None:
        """Take in what a lane has done."""
        now = self._clock.now()
        ledger = self.roster.ledgers[report.lane]
        self.recorder.note_step(report, ledger.step_began, now)
        ledger.observe(report, now)
        self.roster.roles.observe(report)
        if report.times is not None:
            self.note(Event(report.times.begin, EventKind.STEP, lane=report.lane, step=report.step))
        for request_id in report.started:
            request = ledger.get(request_id)
            if request is not None and request.state in UNFINISHED:
                request.events.append((EventKind.STARTED, now))
                self.recorder.note_change(request)
            self.note(Event(now, EventKind.STARTED, request_id, report.lane, report.step))
        for request_id in report.left:
            request = ledger.left(request_id)
            if request is not None:
                self._release(request)
        for copied in report.copied:
            ledger.observe_copy(copied)
            request = ledger.get(copied.request)
            if request is not None:
                self._on_copied(request, copied)
        for stowed in report.stowed:
            self.roster.stowage.note_stowed(stowed)
        for restored in report.restored:
            self.roster.stowage.note_restored(ledger, restored)
        for parked in report.parked:
            request = ledger.parked(parked.request)
            if request is not None:
                self._on_parked(request, parked)
        for told in report.prompt_scores:
            request = ledger.get(told.request)
            if request is not None and request.state in UNFINISHED:
                request.note_prompt(told.scores)
        for progress in report.prompts:
            request = ledger.get(progress.request)
            if request is not None:
                request.computed = progress.computed
        for output in report.outputs:
            request = ledger.get(output.request)
            if request is not None:
                self._on_output(request, output)

    def on_failure(self, failure: LaneFailed) -> None:
        """Let the requests of a lane that lost its context wait again."""
        now = self._clock.now()
        self.note(Event(now, EventKind.LANE_FAILED, lane=failure.lane))
        for request in self.roster.lose(failure):
            self.waits_for(request.model).observe_release(request.id, now, finished=False)
            if request.state in UNFINISHED:
                self._restart(request, failure.error)
            else:
                request.move(RequestState.DONE)
        model = self.roster.ledgers[failure.lane].lane.model
        if self.roster.is_down(model):
            self.end_all(lane_down(model), model)

    def _on_parked(self, request: Request, parked: Parked) -> None:
        if not self._rules.costs.observe(parked):
            parked = replace(parked, saved=None)
        if parked.saved is not None:
            self.counters.parked_bytes_out += len(parked.saved.data)
        request.note_parked(parked)
        self.roster.note_parked(request)
        self.queue.requeue(request)
        self.counters.handovers += request.handed_over
        request.handovers += request.handed_over
        self.tell(EventKind.HANDED_OVER if request.handed_over else EventKind.PARKED, request)

    def _on_copied(self, request: Request, copied: Copied) -> None:
        """Take back what was counted as cached and is not: it has gone before the request could have it."""
        missing = request.reused - copied.length
        first_time = not (request.generated or request.parks or request.restarts)
        if missing > 0 and first_time:
            self.counters.cached_tokens -= missing
            request.cached -= missing
        request.reused = request.computed = copied.length

    def _on_output(self, request: Request, output: RowOutput) -> None:
        unfinished = request.state in UNFINISHED
        if unfinished:
            if output.error is not None:
                self.counters.failed += 1
                self._conclude(request, output.error)
            elif output.vector is not None:
                self._on_vector(request, output.vector)
            else:
                self._on_token(request, output)
        if output.ended:
            self.roster.ledger(request).note_ended(request)
            # A row that should have left went on past what the books know.
            exact = unfinished and output.error is None and not request.shifting
            self._release(request, exact=exact, trimmed=bool(request.model))

    def _on_vector(self, request: Request, vector: Vector) -> None:
        assert isinstance(request, EmbeddingRequest)
        self.counters.embedded += 1
        result = request.embedding(vector, self._clock.now())
        self.measurements.at(request.level).note_text(result)
        self._conclude(request, result)

    def _on_token(self, request: Request, output: RowOutput) -> None:
        now = self._clock.now()
        self.counters.completion_tokens += 1
        measurements = self.measurements.at(request.level)
        measurements.note_token(request, now)
        if request.first_token_at is None:
            self._count_hits(request)
        self.queue.fairness.charge(request.level, request.tenant, output_tokens=1)
        self.recorder.note_token(request, now)
        finish = request.accept(output.token, output.finish, now, output.scores)
        if request.since_join == 1 and request.state is RequestState.RUNNING and request.lease is not None:
            request.lease.note_computed()
        if finish is None:
            if self.roster.roles.hands_over(request):
                self.waits_for(request.model).observe_release(request.id, now, finished=False)
                self.roster.hand_over(request)
            return
        self.counters.finished += 1
        self.counters.finish_reasons[finish.value] += 1
        self._rules.growth.observe(request.level, len(request.generated))
        result = request.result(finish, now)
        in_time = result.timings.per_token <= self._targets[request.level]
        self.counters.in_time += in_time
        measurements.note_result(request, result, in_time=in_time)
        self._conclude(request, result)
        if not output.ended:  # a stop string, which the lane does not know of
            self.roster.stop(request)

    def _count_hits(self, request: Request) -> None:
        """Count what a prompt found in the cache; before its first token, that may turn out to be less."""
        self.counters.queried_tokens += len(request.tokens)
        self.counters.hit_tokens += request.cached
        self.counters.hits += request.cached > 0

    def _restart(self, request: Request, error: LlamalaneError) -> None:
        if request.state is RequestState.RUNNING or request.gives_way:
            request.restarts += 1
        request.handed_over = False
        if request.restarts >= MAX_RESTARTS and not self.roster.is_down(request.model):
            self.counters.failed += 1
            request.move(RequestState.DONE)
            failed = RequestFailedError(f"its lane failed {request.restarts} times under request {request.id}: {error}")
            self._conclude(request, failed)
            return
        self.counters.restarts += 1
        request.move(RequestState.WAITING)
        self.queue.requeue(request)
        self.tell(EventKind.REQUEUED, request)

    # Endings

    def _supersede(self, request: Request) -> None:
        if request.supersede is None:
            return
        older = self._latest.replace(request.scope, request.supersede, request)
        if older is not None and older.state in UNFINISHED:
            self.counters.cancelled += 1
            self.end(older, SupersededError(older.id, request.id))

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

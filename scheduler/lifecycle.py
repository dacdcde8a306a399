"""What happens to a request from its submission to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llamalane.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    LlamalaneError,
    RequestCancelledError,
    RequestShedError,
    SupersededError,
)
from llamalane.ids import Level
from llamalane.scheduler.admission import Choice
from llamalane.scheduler.events import EventKind
from llamalane.scheduler.lane_news import LaneNews
from llamalane.scheduler.limits import TenantPermit
from llamalane.scheduler.queue import Slot
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.request_books import UNFINISHED, lane_down
from llamalane.scheduler.room import ParkReason
from llamalane.scheduler.rules import bounds_of, limit_of, limits_of, targets_of, weights_of
from llamalane.streams import Parking, PoolLane

if TYPE_CHECKING:
    from llamalane.scheduler.config import SchedulerConfig


class Lifecycle(LaneNews):
    """What clients ask for, and what the scheduler decides, entered into the books; `LaneNews` does the lanes' part."""

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

    def cancel(self, request: Request) -> None:
        """End a request for its client's sake, if it has not ended."""
        if request.state in UNFINISHED:
            self.counters.cancelled += 1
            self.end(request, RequestCancelledError(f"request {request.id} was cancelled"))

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

    def _supersede(self, request: Request) -> None:
        if request.supersede is None:
            return
        older = self._latest.replace(request.scope, request.supersede, request)
        if older is not None and older.state in UNFINISHED:
            self.counters.cancelled += 1
            self.end(older, SupersededError(older.id, request.id))

    # From the scheduler

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

    def note_parking(self, request: Request, how: Parking, reason: ParkReason) -> None:
        """Take note that a request is about to lose its place, or a paused one its cells."""
        self.counters.parks[how.value] += 1
        self.counters.reasons[reason.value] += 1
        if request.state is RequestState.RUNNING:
            self.measurements.at(request.level).parked += 1
            self.waits_for(request.model).observe_release(request.id, self._clock.now(), finished=False)
        elif how is Parking.SWAP:  # until its cells are saved it cannot go on
            self.queue.remove(request)

    def _count_turn(self, choice: Choice[Request]) -> None:
        """Count an admission that was not the most urgent level's turn, and why it was not."""
        measurements = self.measurements.at(choice.request.level)
        if choice.by_share:
            measurements.by_share += 1
        elif any(size for level, size in self.queue.sizes.items() if level < choice.request.level):
            measurements.promoted += 1

    def reload(self, settings: SchedulerConfig) -> None:
        """Go by the limits, weights, bounds and targets of `settings` from now on; nothing that is there ends."""
        self.queue.bounds = bounds_of(settings)
        self.queue.fairness.weights.become(weights_of(settings))
        self._limits.set_limits(limits_of(settings), limit_of(settings.other_tenants), self._clock.now())
        self._targets.update(targets_of(settings))

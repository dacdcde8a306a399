"""The scheduler loop: receive, plan, dispatch.

It owns the queue, the places and every request; all of it happens on the event loop, and nothing here waits but the
loop itself, for news. Lanes work on by themselves meanwhile, and tell what they did through `receive_from_lane`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llamalane.clock import Clock
from llamalane.errors import LlamalaneError
from llamalane.ids import Level, RequestId
from llamalane.scheduler.admission import Choice
from llamalane.scheduler.counters import Counters
from llamalane.scheduler.doorbell import Doorbell
from llamalane.scheduler.events import Event, EventKind, Observer
from llamalane.scheduler.explain import Explanation, explain, explain_all
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.lifecycle import Lifecycle
from llamalane.scheduler.limits import TenantPermit
from llamalane.scheduler.live_view import LiveView
from llamalane.scheduler.measurements import Measurements
from llamalane.scheduler.queue import Slot, WaitingQueue
from llamalane.scheduler.request import Request
from llamalane.scheduler.room import RoomMaker
from llamalane.scheduler.rules import Rules
from llamalane.scheduler.standing import Standing, Standings
from llamalane.streams import LaneFailed, LaneMessage, PoolLane, StepReport, StreamPool

if TYPE_CHECKING:
    from llamalane.scheduler.config import SchedulerConfig


class Scheduler:
    """Decides whose tokens come next on the lanes of `pool`."""

    def __init__(self, pool: StreamPool, rules: Rules, *, clock: Clock, observer: Observer | None = None) -> None:
        self.pool = pool
        self.rules = rules
        self._life = Lifecycle(pool, rules, clock=clock, observer=observer)
        self.view = LiveView(self._life, clock)
        self._standings = Standings(self._life)
        self._roster = self._life.roster
        self._models = tuple(dict.fromkeys(lane.model for lane in pool.lanes))
        """Whose lanes there are: each model's requests wait in a line of their own."""
        self._room = RoomMaker(self._roster, rules.displacement, rules.costs, self._life.note_parking)
        self._clock = clock
        self._messages: deque[LaneMessage] = deque()
        self._doorbell: Doorbell | None = None
        self._waiting_for_idle: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Schedule until cancelled."""
        self._doorbell = Doorbell()
        while True:
            self.tick()
            await self._doorbell.wait(self._life.deadlines.seconds_left(self._clock.now()))

    def tick(self) -> None:
        """Take what lanes and clock have to say, admit whom there is room for, and tell the lanes."""
        self._receive()
        self._plan()
        self._dispatch()
        self._life.recorder.announce()

    def receive_from_lane(self, message: LaneMessage) -> None:
        """Take a lane's message; on the lane's thread."""
        self._messages.append(message)
        if self._doorbell is not None:
            self._doorbell.ring_from_thread()

    @property
    def now(self) -> float:
        """The moment on the scheduler's clock."""
        return self._clock.now()

    @property
    def queue(self) -> WaitingQueue[Request]:
        """Who waits."""
        return self._life.queue

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        return self._life.counters

    @property
    def measurements(self) -> Measurements:
        """What requests took so far."""
        return self._life.measurements

    @property
    def ledgers(self) -> Mapping[str, LaneLedger]:
        """The books of each lane."""
        return self._roster.ledgers

    @property
    def running(self) -> Mapping[Level, int]:
        """How many requests of each level hold a place."""
        return self._roster.running

    @property
    def most_choices(self) -> int:
        """How many requests can start together on one lane, whatever their level."""
        reserved = self.rules.admission.reserved
        return max(1, max((lane.region.places for lane in self._roster.roles.homes), default=0) - reserved)

    def can_start_together(self, requests: Sequence[Request]) -> bool:
        """Return whether some lane has KV cells for all of these requests at once, if nothing else ran there."""
        largest = max(lane.region.cells for lane in self._roster.roles.homes)
        return sum(one.next_cells for one in requests) <= largest

    @property
    def idle(self) -> bool:
        """Whether no request waits or holds anything, and no lane saves anything."""
        return self._life.idle

    @property
    def down(self) -> bool:
        """Whether every lane has given up."""
        return self._roster.down

    def submit(self, request: Request, slot: Slot[Request]) -> None:
        """Let a request wait in its slot.

        Raises `QueueFullError`, `TenantLimitError`, `LaneDownError`, `DeadlineExceededError` when its deadline cannot
        be met, or `InvalidRequestError` when there is one of the same id.
        """
        self.submit_all([request], [slot])

    def submit_all(self, requests: Sequence[Request], slots: Sequence[Slot[Request]]) -> None:
        """Let several requests of one tenant wait, each in its slot: all or none; raises what `submit` raises."""
        self._life.submit(requests, slots)
        self._wake()

    def cancel(self, request: Request) -> None:
        """End a request for its client's sake; nothing happens when it has ended."""
        self._life.cancel(request)
        self._wake()

    def find(self, request: RequestId) -> Request:
        """Return the request of that id; raises `KeyError` unless it waits or runs."""
        return self._life.find(request)

    def set_level(self, request: Request, level: Level) -> None:
        """Give an unfinished request another level, as if it had been submitted at it; its waiting counts as before."""
        self._life.set_level(request, level)
        self._wake()

    def pause_lane(self, lane: PoolLane) -> None:
        """Let a lane finish what runs on it and take nothing new, until `resume_lane`; may be repeated."""
        self.pool.withhold(lane)
        self._wake()

    def resume_lane(self, lane: PoolLane) -> None:
        """Let a paused lane take requests again; nothing happens when it is not paused."""
        self.pool.lend(lane)
        self._wake()

    def reload(self, settings: SchedulerConfig) -> None:
        """Go by the limits, weights, bounds and targets of `settings` from now on; nothing that is there ends."""
        self._life.reload(settings)
        self._wake()

    def follow(self, request: Request) -> None:
        """Let a request wait that comes for one which has ended, of the same client; the bounds do not apply."""
        self._life.follow(request)
        self._wake()

    def enter(self, tenant: str, tokens: int) -> TenantPermit:
        """Charge a tenant for work of several requests; raises what `Lifecycle.enter` raises."""
        return self._life.enter(tenant, tokens)

    def end_all(self, error: LlamalaneError) -> None:
        """End every request that has not ended, each with `error`."""
        self._life.end_all(error)
        self._life.recorder.announce()  # the loop, which else does, may have ended
        self._wake()

    def stow_all(self) -> None:
        """Save what the lanes keep of finished prompts, if it is worth it, and give it up."""
        for ledger in self.ledgers.values():
            if ledger.lane.serving:
                self._roster.stowage.stow_all(ledger)
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

    def explain(self, request: RequestId) -> Explanation:
        """Tell where a request is and why; raises `KeyError` for one that neither waits nor runs."""
        return explain(self._life, self.rules, request, self._clock.now())

    def explain_all(self) -> list[Explanation]:
        """Tell it of all requests: those that wait, in the order of their turns, then those that run."""
        return explain_all(self._life, self.rules, self._clock.now())

    def standing(self, request: RequestId) -> Standing:
        """Tell where a request stands, in short; raises `KeyError` for one that neither waits nor runs."""
        return self._standings.find(request, self._clock.now())

    # Receive

    def _receive(self) -> None:
        while self._messages:
            message = self._messages.popleft()
            if isinstance(message, StepReport):
                self._life.on_step(message)
            elif isinstance(message, LaneFailed):
                self._life.on_failure(message)
            else:
                self.pool.resume(self.ledgers[message.lane].lane)
                self._life.note(Event(self._clock.now(), EventKind.LANE_READY, lane=message.lane))
        self._life.end_late()

    # Plan

    def _plan(self) -> None:
        for ledger in self.ledgers.values():
            if ledger.running:
                self._room.feed(ledger)
        for model in self._models:
            while (admission := self._next(model)) is not None:
                choice, lane = admission
                for request in choice.request.company:
                    self._life.admit(replace(choice, request=request), lane)
        if self.queue.nearly_full:  # so that whoever is turned away need not wait for it
            self._life.queue_waits.refresh(self._clock.now())
        self._tell_idle()

    def _next(self, model: str) -> tuple[Choice[Request], PoolLane] | None:
        """Return who starts next on a model's lanes, and where: on a free place, or in the room of one less urgent."""
        for choice in self._choices(model):
            if self._has_places(choice.request):
                lane = self._room.find_room(choice.request, by_share=choice.by_share)
                if lane is not None:
                    return choice, lane
        urgent = self.rules.admission_for(model).most_urgent(self.queue.line(model))
        if urgent is not None:
            lane = self._room.make_room(urgent.request, self._open_places(urgent.request))
            if lane is not None:
                return urgent, lane
        return None

    def _choices(self, model: str) -> list[Choice[Request]]:
        """Return who may start on a free place: whom admission chooses, and the first of those who were handed over.

        These were admitted before: they wait behind nobody who came later or is less urgent, and are not counted again.
        """
        admission, free = self.rules.admission_for(model), self.pool.free_on(model)
        choice = admission.choose(self.queue.line(model), free, self._roster.running_on(model))
        returning = None if model else self._roster.next_handed_over
        if choice is None or returning is None or returning.level > choice.open_to:
            return [] if choice is None else [choice]
        if choice.request.handed_over:
            choice = replace(choice, by_share=False)
        goes_on = Choice(returning, by_share=False, open_to=choice.open_to)
        first, other = choice.request, goes_on.request
        return [choice, goes_on] if choice.by_share or _precedes(first, other) else [goes_on, choice]

    def _has_places(self, request: Request) -> bool:
        """Return whether so many places are free for a request's level as start together."""
        return request.gang is None or len(request.company) <= self._open_places(request)

    def _open_places(self, request: Request) -> int:
        """Return how many free places requests like this one may take, one after the other."""
        admission, running = self.rules.admission_for(request.model), self._roster.running_on(request.model)
        free = most = self.pool.free_on(request.model)
        while free:
            open_to = admission.open_to(free, running)
            if open_to is None or open_to < request.level:
                break
            free -= 1
        return most - free

    def _tell_idle(self) -> None:
        if self._waiting_for_idle and self.idle:
            callbacks, self._waiting_for_idle = self._waiting_for_idle, []
            for callback in callbacks:
                callback()

    # Dispatch

    def _dispatch(self) -> None:
        now = self._clock.now()
        for ledger in self.ledgers.values():
            step = ledger.step_to_abandon(now, self.rules.abort_after)
            plan = ledger.next_plan(now, successors=len(self.queue.line(ledger.lane.model)) > 0)
            if plan is not None:
                ledger.lane.backend.post(plan)
            if step is not None:
                ledger.lane.backend.abandon(step)

    def _wake(self) -> None:
        if self._doorbell is not None:
            self._doorbell.ring()


def _precedes(one: Request, other: Request) -> bool:
    """Return whether a request is more urgent than another one, or as urgent and older."""
    return (one.key, one.order) < (other.key, other.order)

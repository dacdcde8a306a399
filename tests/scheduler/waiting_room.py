"""A queue on a virtual clock: places, a bounded waiting room, and clients who come back when they are told to."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from llamalane.errors import QueueFullError
from llamalane.ids import Level, RequestId
from llamalane.scheduler.level_queue import age
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.queue import QueueBounds, WaitingQueue
from llamalane.scheduler.waits import WaitPredictor

MEAN = 4.0
"""Seconds that a request keeps its place, on average."""
Draw = Callable[[random.Random], float]
SERVICE_TIMES: dict[str, Draw] = {
    "fixed": lambda chance: MEAN,
    "uniform": lambda chance: chance.uniform(0.5 * MEAN, 1.5 * MEAN),
    "lognormal": lambda chance: chance.lognormvariate(math.log(MEAN) - 0.125, 0.5),
    "exponential": lambda chance: chance.expovariate(1 / MEAN),
}
Obey = Callable[[float], float | None]
"""After how many seconds a client comes back that was told a time; None if it never does."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A client of `level` was turned away at `time` and told to come back after `told` seconds.

    `ahead` others had been turned away before, and would still come; `waiting` had got in.
    """

    time: float
    level: Level
    told: float
    ahead: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Wait:
    """What a waiting request was told, and how long it waited, in seconds."""

    level: Level
    told: float
    took: float

    @property
    def told_well(self) -> bool:
        """Whether it took from half to twice as long as told, or was a tenth of a second off."""
        return self.told / 2 <= self.took <= 2 * self.told or abs(self.told - self.took) < 0.1


@dataclass(frozen=True, slots=True)
class Client:
    """A client that waits in the queue since a moment; `told` is how long it was told to wait, if it was."""

    id: RequestId
    level: Level
    order: int
    since: float
    told: float | None
    tenant: str = ""
    prompt_tokens: int = 1

    @property
    def key(self) -> tuple[int, float]:
        return self.level, 0.0


@dataclass
class WaitingRoom:
    """Serves clients in the order of their levels at `places`; at most `slots` wait.

    `service_time` gives how long each takes; `obey` is what a client does when it is turned away. Those who wait are
    told how long only if `foretelling`.
    """

    places: int
    slots: int
    service_time: Callable[[], float]
    obey: Obey = float
    foretelling: bool = False
    waits: WaitPredictor = field(default_factory=WaitPredictor)
    now: float = 0.0
    refusals: list[Refusal] = field(default_factory=list)
    retries: list[tuple[Level, bool]] = field(default_factory=list)
    """The level of each retry, and whether it got a slot."""
    waited: list[Wait] = field(default_factory=list)
    served: int = 0

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._queue = WaitingQueue[Client](
            QueueBounds(self.slots, 10**9),
            self._retry_after,
            kept=lambda level: self.waits.returns.ask(level, self.now),
        )
        self._running = 0
        self._away: dict[Level, int] = dict.fromkeys(LEVELS, 0)
        self._came_free: list[float] = []
        self._taken: dict[Level, list[float]] = {level: [] for level in LEVELS}
        """When slots were taken by those who had not been turned away, by their levels."""

    def at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    def run(self, until: float = math.inf) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def arrive(self, level: int = 3, obey: Obey | None = None) -> None:
        """Let a client ask for service, who does as `obey` says, or else as all do, if it is turned away."""
        if self._ask(Level(level), obey or self.obey):
            self._taken[Level(level)].append(self.now)

    def refusals_of(self, level: Level) -> list[Refusal]:
        return [refusal for refusal in self.refusals if refusal.level == level]

    def turn_of(self, refusal: Refusal) -> float | None:
        """Return after how many seconds the refused client's turn was, None if it was never.

        Then as many slots had come free as were taken by newcomers, and by those who had been refused before, and
        one more; of these and those, the less urgent ones left out.
        """
        taken = sorted(time for level in LEVELS[: refusal.level] for time in self._taken[level])
        slots = -refusal.ahead
        newcomers = bisect_right(taken, refusal.time)
        for index in range(bisect_right(self._came_free, refusal.time), len(self._came_free)):
            time = self._came_free[index]
            slots += 1
            while newcomers < len(taken) and taken[newcomers] <= time:
                newcomers += 1
                slots -= 1
            if slots > 0:
                return time - refusal.time
        return None

    def _come_back(self, level: Level, obey: Obey) -> None:
        self._away[level] -= 1
        self.retries.append((level, self._ask(level, obey)))

    def _ask(self, level: Level, obey: Obey) -> bool:
        """Let a client wait if it can, and say whether it can."""
        try:
            with self._queue.reserve_nowait(level) as slot:
                self.waits.observe_arrival(level, self.now)
                number = next(self._numbers)
                slot.fill(Client(RequestId(str(number)), level, number, self.now, self._foretell(level)))
        except QueueFullError as error:
            self._refuse(level, error.retry_after, obey)
            return False
        self._serve()
        return True

    def _foretell(self, level: Level) -> float | None:
        if not self.foretelling or self._running < self.places:
            return None
        ahead = sum(self._queue.sizes[better] for better in LEVELS[:level])
        return self.waits.estimated_wait(ahead, level, self.now)

    def _retry_after(self, level: Level, slots: int) -> float:
        self.waits.refresh(self.now)  # as the scheduler has done after its last turn
        return self.waits.retry_after(level, self.now, slots)

    def _refuse(self, level: Level, told: float, obey: Obey) -> None:
        ahead = sum(self._away[better] for better in LEVELS[:level])
        self.refusals.append(Refusal(self.now, level, told, ahead, len(self._queue)))
        seconds = obey(told)
        if seconds is not None:
            self._away[level] += 1
            self.at(self.now + seconds, partial(self._come_back, level, obey))

    def _serve(self) -> None:
        while len(self._queue) and self._running < self.places:
            client = min((head.oldest for head in self._queue.heads()), key=age)
            self._queue.remove(client)
            if client.told is not None:
                self.waited.append(Wait(client.level, client.told, self.now - client.since))
            self._running += 1
            self.served += 1
            self._came_free.append(self.now)
            self.waits.observe_admission(client.id, client.level, self.now)
            self.at(self.now + self.service_time(), partial(self._end, client.id))

    def _end(self, client: RequestId) -> None:
        self._running -= 1
        self.waits.observe_release(client, self.now)
        self._serve()


def room_of(places: int, name: str, seed: int, slots: int | None = None) -> tuple[WaitingRoom, random.Random]:
    """Return a room with service times of that name, and the chance that they are drawn from."""
    chance = random.Random(seed)
    return WaitingRoom(places, slots or 4 * places, lambda: SERVICE_TIMES[name](chance)), chance


def let_arrive(
    room: WaitingRoom,
    chance: random.Random,
    load: float,
    start: float,
    end: float,
    level: int = 3,
    obey: Obey | None = None,
) -> None:
    """Let clients arrive at random from `start` to `end`, `load` times as many as can be served."""
    time = start
    while (time := time + chance.expovariate(load * room.places / MEAN)) < end:
        room.at(time, partial(room.arrive, level, obey))

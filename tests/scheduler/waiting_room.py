"""A queue on a virtual clock: places, a bounded waiting room, and clients who come back when they are told to."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from llamalane.ids import Level, RequestId
from llamalane.scheduler.waits import WaitPredictor


@dataclass(frozen=True, slots=True)
class Refusal:
    """A client was turned away at `time` and told to come back after `told` seconds; `ahead` others had been before."""

    time: float
    told: float
    ahead: int


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


@dataclass
class WaitingRoom:
    """Serves requests in the order of their levels at `places`; at most `slots` wait.

    `service_time` gives how long each takes; `obey` turns what a refused client is told into what it does. Those who
    wait are told how long only if `foretelling`.
    """

    places: int
    slots: int
    service_time: Callable[[], float]
    obey: Callable[[float], float] = float
    foretelling: bool = False
    waits: WaitPredictor = field(default_factory=WaitPredictor)
    now: float = 0.0
    refusals: list[Refusal] = field(default_factory=list)
    retries: list[bool] = field(default_factory=list)
    """Whether each retry got a slot."""
    waited: list[Wait] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._waiting: list[tuple[Level, int, float, float | None]] = []
        self._running = 0
        self._away: set[int] = set()
        self._came_free: list[float] = []
        self._taken_by_newcomers: list[float] = []

    def at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    def run(self) -> None:
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def arrive(self, level: int = 3, client: int | None = None) -> None:
        """Let a client ask for service; `client` is the number of one who was refused before."""
        full = self._running == self.places and len(self._waiting) == self.slots
        if client is not None:
            self.retries.append(not full)
            self._away.discard(client)
        if full:
            self._refuse(level, next(self._numbers) if client is None else client)
            return
        if client is None:
            self._taken_by_newcomers.append(self.now)
        self.waits.observe_arrival(Level(level), self.now)
        number, told = next(self._numbers), None
        if self.foretelling and self._running == self.places:
            ahead = bisect_right(self._waiting, (Level(level), number))
            told = self.waits.estimated_wait(ahead, Level(level), self.now)
        insort(self._waiting, (Level(level), number, self.now, told))
        self._serve()

    def turn_of(self, refusal: Refusal) -> float | None:
        """Return after how many seconds the refused client's turn was, None if it was never.

        Then as many slots had come free as were taken by newcomers, and by those who had been refused before, and
        one more.
        """
        slots = -refusal.ahead
        newcomers = bisect_right(self._taken_by_newcomers, refusal.time)
        for index in range(bisect_right(self._came_free, refusal.time), len(self._came_free)):
            time = self._came_free[index]
            slots += 1
            while newcomers < len(self._taken_by_newcomers) and self._taken_by_newcomers[newcomers] <= time:
                newcomers += 1
                slots -= 1
            if slots > 0:
                return time - refusal.time
        return None

    def _refuse(self, level: int, client: int) -> None:
        told = self.obey(self.waits.retry_after(self.now))
        self.refusals.append(Refusal(self.now, told, len(self._away)))
        self._away.add(client)
        self.at(self.now + told, lambda: self.arrive(level, client))

    def _serve(self) -> None:
        while self._waiting and self._running < self.places:
            level, number, since, told = self._waiting.pop(0)
            if told is not None:
                self.waited.append(Wait(level, told, self.now - since))
            self._running += 1
            self._came_free.append(self.now)
            self.waits.observe_admission(RequestId(str(number)), level, self.now)
            self.at(self.now + self.service_time(), partial(self._end, number))

    def _end(self, number: int) -> None:
        self._running -= 1
        self.waits.observe_release(RequestId(str(number)), self.now)
        self._serve()

"""How long it takes until places come free: for those who wait, and for those who were turned away.

What is known of a running request is its age, and how long others of its level kept their places; so its end is a
matter of chance, and so is that of whoever takes the place next. A few dozen possible futures of the places are laid
out, spread evenly over these chances, and the releases in all of them are counted. That gives how many releases are
to be expected by any moment, and how far that may be off.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import fmean

from llamalane.ids import MOST_URGENT, Level, RequestId
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.quantiles import LevelQuantiles, likely_duration
from llamalane.scheduler.returns import PromisedReturns

SHORTEST = 0.05
"""No estimate is shorter, in seconds."""
FIRST_GUESS = 1.0
"""A request is thought to keep its place for so many seconds at least, while nothing is known."""
ENOUGH = 4
"""From so many service times on, they are trusted."""

_WINDOW = 256
"""How many recent service times of a level are remembered."""
_FRESH = 0.05
"""For so many seconds, what was worked out is used again if no place was taken or left."""
_STALE = 0.5
"""Whoever is turned away, which must be quick, is told by what was worked out so many seconds ago at most."""
_PROMISED = 0.87
"""The share of the slots expected to come free that is promised to those who are turned away."""
_WHOLE = 1.0
"""Longer times to come back after are whole seconds: HTTP knows no others, and who comes later than told finds that
others have come meanwhile."""
_MOST_OVERTAKING = 0.9
"""The share of the places that more urgent requests are thought to take before those who wait, at most."""
_MOST_TAKEN = 0.67
"""The share of the slots that more urgent requests are thought to take before those who come back, at most."""


class WaitPredictor:
    """Learns how long requests keep their places, and predicts when the next places and slots come free.

    It is told of every request that joins the queue, gets a place or loses it. A slot of a full queue comes free when
    a waiting request gets a place.
    """

    def __init__(self, returns: PromisedReturns | None = None) -> None:
        self._services: LevelQuantiles[float] = LevelQuantiles(_WINDOW, ENOUGH)
        self._running: dict[RequestId, tuple[Level, float]] = {}
        """The level of each request that has a place, and since when it has it."""
        self._arrivals = {level: _Arrivals() for level in LEVELS}
        """For each level, the arrivals at that level or a better one."""
        self.returns = returns or PromisedReturns()
        """Those who were turned away, of all who share the queue."""
        self._forecast: _Forecast | None = None
        self._changed = False
        """Whether places were taken or left since the forecast."""

    def observe_arrival(self, level: Level, now: float) -> None:
        """Take note that a request has joined the queue."""
        for other in LEVELS[level - MOST_URGENT :]:
            self._arrivals[other].add(now)

    def observe_admission(self, request: RequestId, level: Level, now: float) -> None:
        """Take note that a request has got a place."""
        self._running[request] = (level, now)
        self._changed = True

    def observe_release(self, request: RequestId, now: float, *, finished: bool = True) -> None:
        """Take note that a request has lost its place; nothing happens when it had none.

        `finished` tells that it needs none any more: how long others kept their places, which were parked or whose
        lane failed, teaches nothing.
        """
        if request in self._running:
            level, since = self._running.pop(request)
            self._changed = True
            if finished:
                self._services.add(level, now - since)

    def retry_after(self, level: Level, now: float, slots: int = 1) -> float:
        """Return in how many seconds someone who is turned away now should come back, and promise it to be served.

        `slots` is how many slots of the queue it needs, 0 if it lacks tokens, which are not promised. They are promised
        one after the other, as they are expected to come free, so those who are turned away are told to come one after
        the other. Four in five, at least, should find their slots when they come.
        """
        forecast = self._forecast
        if forecast is None or now - forecast.start > _STALE:
            forecast = self.refresh(now)
        releases = max(slots, 1) + round(self.returns.expected(level, now))
        share = _PROMISED * (1 - min(self._more_urgent(level, forecast.interval, now), _MOST_TAKEN))
        seconds = max(forecast.latest(releases, now) / share, SHORTEST)
        if seconds > _WHOLE:
            seconds = float(math.ceil(seconds))
        self.returns.promise(level, now + seconds, slots)
        return seconds

    def estimated_wait(self, ahead: int, level: Level, now: float) -> float:
        """Return in how many seconds a waiting request is likely to get a place.

        `ahead` is how many of those who wait get theirs first. More urgent ones are thought to come as often as
        lately, and to overtake it.
        """
        forecast = self.refresh(now)
        overtaking = min(self._more_urgent(level, forecast.interval, now), _MOST_OVERTAKING)
        return max(forecast.likely(ahead + 1, now) / (1 - overtaking), SHORTEST)

    def refresh(self, now: float) -> _Forecast:
        """Work out anew what is to be expected, unless that was done a moment ago."""
        if self._forecast is None or self._changed or now - self._forecast.start > _FRESH:
            self._forecast = _Forecast(self._services, self._running.values(), now)
            self._changed = False
        return self._forecast

    def _more_urgent(self, level: Level, interval: float, now: float) -> float:
        """Return how many more urgent requests join the queue in `interval` seconds."""
        return self._arrivals[Level(level - 1)].count_in(interval, now) if level > MOST_URGENT else 0.0


class _Arrivals:
    """The moments of the latest arrivals."""

    REMEMBERED = 64
    FEWEST_INTERVALS = 32
    """So many intervals are looked at, at least: a few requests at once are no stream of them."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=self.REMEMBERED)

    def add(self, now: float) -> None:
        self._times.append(now)

    def count_in(self, interval: float, now: float) -> float:
        """Return how many requests come in `interval` seconds.

        Measured by the share of the time that lies within an interval after an arrival: if they come at random, that
        is 1 − exp(−count). A burst hardly counts in it, and should not: nobody may follow.
        """
        if not self._times:
            return 0.0
        covered = sum(min(after - before, interval) for before, after in pairwise([*self._times, now]))
        watched = max(now - self._times[0], self.FEWEST_INTERVALS * interval)
        return -math.log1p(-min(covered / watched, 0.99)) if watched > 0 else 0.0


class _Forecast:
    """When places come free after `start`, the `running` requests being given by their levels and admissions.

    `interval` is the mean time between two releases.
    """

    FUTURES = 64
    """About so many are laid out, for all places together; each place has its share, and four at least."""
    STEPS = (0.6180339887, 0.8191725134, 0.6710436067, 0.5497004779)
    """One for each release of a future. Multiples of the first, modulo 1, lie evenly between 0 and 1; those of the
    others, taken together, do so in a cube (golden ratios of one and of three dimensions)."""
    LIKELY, LATEST = 0.3, 0.84
    """By how many standard deviations fewer releases than the mean are counted on: for even odds, and for 4 in 5."""

    def __init__(self, services: LevelQuantiles[float], running: Iterable[tuple[Level, float]], start: float) -> None:
        self.start = start
        self._services = services
        self._running = list(running)
        self._places = max(len(self._running), 1)
        self._futures = max(self.FUTURES // self._places, 4)
        self._guess = max(FIRST_GUESS, fmean([start - since for _, since in self._running] or [0.0]))
        self._service = self._mean_service()
        self.interval = self._service / self._places
        self._times: list[float] = []
        self._likely: list[float] = []
        self._latest: list[float] = []
        self._count()

    def likely(self, releases: int, now: float) -> float:
        """Return in how many seconds there have been so many releases, with even odds."""
        return self._seconds(self._likely, releases, now)

    def latest(self, releases: int, now: float) -> float:
        """Return in how many seconds there have been so many releases, in four cases of five."""
        return self._seconds(self._latest, releases, now)

    def _seconds(self, counts: list[float], releases: int, now: float) -> float:
        if not counts:
            return FIRST_GUESS
        # Futures end after some releases of each place. From the second on, they are repeated every mean service.
        rounds = max(math.ceil(releases / self._places) - 2, 0)
        seconds = self._times[self._index(counts, releases - rounds * self._places)] - now
        if rounds:
            first, last = (self._index(counts, count) for count in (self._places + 1, 2 * self._places))
            seconds += rounds * max(self._service, self._times[last] - self._times[first])
        return seconds

    def _index(self, counts: list[float], releases: int) -> int:
        return min(bisect_left(counts, releases), len(counts) - 1)

    def _count(self) -> None:
        """Go through the releases in all futures, and note how many can be counted on by each of them."""
        releases = sorted(
            (time, place, future)
            for place in range(len(self._running))
            for future in range(self._futures)
            for time in self._future(place, future)
        )
        counts = [[0] * self._futures for _ in self._running]
        sums = [0] * len(self._running)
        mean = variance = likely = latest = 0.0
        for time, place, future in releases:
            count = counts[place][future]
            counts[place][future] += 1
            variance += (2 * count + 1) / self._futures - (2 * sums[place] + 1) / self._futures**2
            sums[place] += 1
            mean += 1 / self._futures
            deviation = math.sqrt(max(variance, 0.0))
            # The half turns a mean into a count: whoever waits for the first release expects it when one half is due.
            likely = max(likely, mean + 0.5 - self.LIKELY * deviation)
            latest = max(latest, mean + 0.5 - self.LATEST * deviation)
            self._times.append(time)
            self._likely.append(likely)
            self._latest.append(latest)

    def _future(self, place: int, future: int) -> Iterator[float]:
        """Return the moments of a place's releases in one of its futures."""
        level, since = self._running[place]
        window = self._services.window(level)
        number = place * self._futures + future + 0.5
        share = (future + (place + 0.5) * self.STEPS[0] % 1) / self._futures
        time = since + likely_duration(window, self.start - since, share, self._guess)
        yield time
        for step in self.STEPS[1:]:
            time += likely_duration(window, 0.0, number * step % 1, self._guess)
            yield time

    def _mean_service(self) -> float:
        windows = [self._services.window(level) for level, _ in self._running]
        return fmean([self._guess if window is None else window.mean for window in windows] or [self._guess])

"""With how many threads a lane computes: fewer while other processes want its cores.

llama.cpp's threads meet after every operation of a step. Where another process has one of their cores, all of them wait
for the thread that it belongs to, and while they sleep, other processes take their cores as well: with one thread less
a step is no slower, and often quicker.

What tells of it is the share of a step's time in which the lane's own thread ran. It is near 1 where nobody else wants
the cores, and hardly depends on what is computed, so that steps of all sizes can be compared. Times the number of
threads it is about how many cores the step has had, which is what the numbers of threads are compared by. A thread that
spins while it waits seems to run, so all this is blind where OpenMP's spin is not bounded.
"""

from __future__ import annotations

import enum

WINDOW = 0.25
"""Steps are judged together, so many seconds of them,"""
LEAST_STEPS = 3
"""and at least so many."""

STARVED = 0.7
"""The lane is starved when its thread runs for less than this share of its steps,"""
STARVED_WINDOWS = 2
"""in so many windows, one after the other."""

WORTH_KEEPING = 0.2
"""A thread that was dropped is taken back if the lane had more than so many cores of it,"""
WORTH_TAKING = 0.5
"""and one that was taken is kept if the lane has at least so many more cores for it."""

FIRST_WAIT = 1.0
"""So many seconds after it was starved does a lane try to take threads again,"""
LONGEST_WAIT = 60.0
"""and each time that it brought nothing twice as many, up to this."""


class _Phase(enum.Enum):
    SETTLED = "settled"
    FEWER = "fewer"
    """Fewer threads are tried out."""
    MORE = "more"
    """More threads are tried out."""


class ThreadCount:
    """Decides with how many threads, from `least` to `most`, the next step is computed: `threads`.

    It is told of every step, and has no clock of its own.
    """

    def __init__(self, most: int, *, least: int = 1) -> None:
        self.least = least
        self.most = most
        self.threads = most
        self._phase = _Phase.SETTLED
        self._before = (most, 0.0)
        """The threads before those that are tried out, and the cores that they had."""
        self._stride = 1
        """How many threads are tried at once when more are tried."""
        self._wait = FIRST_WAIT
        self._fewer_at = 0.0
        self._more_at = 0.0
        self._well_since: float | None = None
        self._starved = 0
        self._fresh = False
        self._clear()

    def observe(self, wall: float, ran: float, now: float) -> None:
        """Take note of a step that ended at `now` and took `wall` seconds, of which the lane's thread ran for `ran`."""
        if self.least == self.most:
            return
        if self._fresh:  # OpenMP has begun or ended threads in it
            self._fresh = False
            return
        self._wall += wall
        self._ran += ran
        self._steps += 1
        if self._steps < LEAST_STEPS or self._wall < WINDOW:
            return
        share = min(1.0, self._ran / self._wall)
        self._clear()
        match self._phase:
            case _Phase.SETTLED:
                self._watch(share, now)
            case _Phase.FEWER:
                self._judge_fewer(share * self.threads, now)
            case _Phase.MORE:
                self._judge_more(share * self.threads, now)

    def _watch(self, share: float, now: float) -> None:
        starved = share < STARVED
        self._starved = self._starved + 1 if starved else 0
        self._note_health(starved, now)
        if self._starved >= STARVED_WINDOWS and self.threads > self.least and now >= self._fewer_at:
            cores = share * self.threads
            self._try(_Phase.FEWER, max(self.least, min(self.threads - 1, round(cores))), cores)
        elif not starved and self.threads < self.most and now >= self._more_at:
            self._stride = min(self._stride, self.most - self.threads)
            self._try(_Phase.MORE, self.threads + self._stride, share * self.threads)

    def _note_health(self, starved: bool, now: float) -> None:
        """Forget former failures once all threads have run for as long as they let it wait."""
        if starved or self.threads < self.most:
            self._well_since = None
        elif self._well_since is None:
            self._well_since = now
        elif now - self._well_since >= self._wait:
            self._wait = FIRST_WAIT

    def _judge_fewer(self, cores: float, now: float) -> None:
        before, had = self._before
        dropped = before - self.threads
        if had - cores > WORTH_KEEPING * dropped:
            self._return()
            self._fewer_at = now + self._lengthen_wait()
        else:
            self._phase = _Phase.SETTLED
            self._stride = max(1, dropped // 2)
            self._more_at = now + self._lengthen_wait()

    def _judge_more(self, cores: float, now: float) -> None:
        before, had = self._before
        if cores - had >= WORTH_TAKING * (self.threads - before):
            self._phase = _Phase.SETTLED
            self._stride *= 2
            return
        self._return()
        if self._stride > 1:
            self._stride //= 2
        else:
            self._more_at = now + self._lengthen_wait()

    def _try(self, phase: _Phase, threads: int, cores: float) -> None:
        self._phase, self._before = phase, (self.threads, cores)
        self._change(threads)

    def _return(self) -> None:
        self._phase = _Phase.SETTLED
        self._change(self._before[0])

    def _change(self, threads: int) -> None:
        self.threads = threads
        self._fresh = True
        self._starved = 0

    def _lengthen_wait(self) -> float:
        """Return how long to wait now; the next time it is twice as long."""
        wait, self._wait = self._wait, min(2 * self._wait, LONGEST_WAIT)
        return wait

    def _clear(self) -> None:
        self._wall = self._ran = 0.0
        self._steps = 0

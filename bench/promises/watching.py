"""An engine that keeps what happened in it: every event, and every report of its lanes."""

from __future__ import annotations

import time

from llamalane.clock import Clock
from llamalane.scheduler import Engine, EngineConfig, Event, Observer
from llamalane.scheduler.archive import Archive
from llamalane.scheduler.assembly import Machinery
from llamalane.scheduler.rules import Rules, rules_of
from llamalane.scheduler.scheduler import Scheduler
from llamalane.streams import LaneMessage, StepReport, StreamPool


class LeapingClock:
    """The machine's monotonic clock, which can leap ahead; so requests are old that came a moment ago."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        """Return the current time in seconds."""
        return time.monotonic() + self._ahead

    def leap(self, seconds: float) -> None:
        """Let so many seconds pass at once."""
        self._ahead += seconds


class WatchedEngine(Engine):
    """An engine whose events and steps can be looked at afterwards, each in their order.

    Times of `events` are the clock's, those of `reports` what `time.monotonic` tells: the same unless the clock leaps.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.events: list[Event] = []
        self.reports: list[StepReport] = []
        self.clock = LeapingClock()
        super().__init__(config, clock=self.clock, observer=self.events.append)

    def _make_scheduler(self, machinery: Machinery, archive: Archive | None) -> Scheduler:
        rules = rules_of(self.config, can_swap=machinery.can_swap, archive=archive)
        return _WatchedScheduler(self.reports, machinery.pool, rules, clock=self.clock, observer=self.events.append)


class _WatchedScheduler(Scheduler):
    def __init__(
        self, reports: list[StepReport], pool: StreamPool, rules: Rules, *, clock: Clock, observer: Observer
    ) -> None:
        self._reports = reports
        super().__init__(pool, rules, clock=clock, observer=observer)

    def receive_from_lane(self, message: LaneMessage) -> None:
        """Keep a report, and take the message; on the lane's thread."""
        if isinstance(message, StepReport):
            self._reports.append(message)
        super().receive_from_lane(message)

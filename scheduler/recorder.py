"""A flight recorder: what happened of late on the lanes and to requests, for whoever comes to look.

It always runs, since all that it takes for a step is an entry in a ring. Everything in it is bounded; whoever reads too
slowly misses what was overwritten, and costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

from llamalane.ids import Level, RequestId, StepNumber
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.request import Request
from llamalane.scheduler.request_view import RequestView, view_of
from llamalane.scheduler.sliding_histogram import SlidingHistogram
from llamalane.streams import StepReport

STEPS = 2048
"""So many steps of each lane are remembered."""
CHANGES = 4096
"""So many changes of requests."""
ENDED = 200
"""So many requests that have ended."""
SECONDS = 120
"""The tokens of so many seconds are counted, second by second."""
FIRST_TOKEN_SPAN = 300.0
GAP_SPAN = 60.0
"""Quantiles of times to the first token, and of the gaps between tokens, are of so many seconds."""

T = TypeVar("T")


class Ring(Generic[T]):
    """The last `size` entries. They are counted from the first one on, so that a reader knows where it was."""

    def __init__(self, size: int) -> None:
        self._entries: deque[T] = deque(maxlen=size)
        self.total = 0
        """How many entries there have been."""

    def append(self, entry: T) -> None:
        """Add an entry, in place of the oldest one when it is full."""
        self._entries.append(entry)
        self.total += 1

    def since(self, total: int) -> list[T]:
        """Return the entries after the first `total` ones that are still there, oldest first."""
        missed = min(self.total - total, len(self._entries))
        return [self._entries[index] for index in range(len(self._entries) - missed, len(self._entries))]

    def lost(self, total: int) -> bool:
        """Return whether some entries after the first `total` ones are gone."""
        return self.total - total > len(self._entries)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A lane's step, or one that was broken off: then its beginning is about right, and nothing was computed."""

    number: StepNumber
    begin: float
    seconds: float
    decode_rows: int
    prefill_tokens: int
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """Something has happened to a request, which is the tenant's."""

    request: RequestId
    tenant: str


@dataclass(slots=True)
class TokenCount:
    """The tokens of one second: generated ones, and computed ones of prompts."""

    second: int
    generated: int = 0
    prompt: int = 0


class FlightRecorder:
    """Remembers the last steps, changes and ends of requests, and how quickly tokens came."""

    def __init__(self, lanes: Iterable[str], now: float) -> None:
        self.started = now
        self.steps: dict[str, Ring[StepRecord]] = {lane: Ring(STEPS) for lane in lanes}
        self.changes: Ring[Change] = Ring(CHANGES)
        self.ended: dict[RequestId, RequestView] = {}
        """Those that ended last, oldest first."""
        self.tokens: deque[TokenCount] = deque(maxlen=SECONDS)
        """The seconds in which tokens were computed."""
        self.first_token = _histograms(FIRST_TOKEN_SPAN)
        self.gap = _histograms(GAP_SPAN)
        self._version = 0
        self._news: anyio.Event | None = None

    def note_step(self, report: StepReport, began: float, now: float) -> None:
        """Enter a lane's report, if it is of a step; `began` is about when an abandoned one did."""
        times = report.times
        if times is not None:
            seconds = times.decode + times.sample
            self.steps[report.lane].append(
                StepRecord(report.step, times.begin, seconds, report.decode_rows, report.prefill_tokens)
            )
            count = self._count_at(now)
            count.generated += len(report.outputs)
            count.prompt += report.prefill_tokens
        elif report.abandoned:
            self.steps[report.lane].append(StepRecord(report.step, began, now - began, 0, 0, abandoned=True))

    def note_token(self, request: Request, now: float) -> None:
        """Enter that a request is about to get a token."""
        if request.last_token_at is None:
            self.first_token[request.level].add(now - request.arrival, now)
        else:
            self.gap[request.level].add(now - request.last_token_at, now)

    def note_change(self, request: Request) -> None:
        """Enter that something has happened to a request."""
        self.changes.append(Change(request.id, request.tenant))

    def note_end(self, request: Request) -> None:
        """Enter that a request has its outcome."""
        self.ended.pop(request.id, None)
        self.ended[request.id] = view_of(request)
        if len(self.ended) > ENDED:
            del self.ended[next(iter(self.ended))]

    def announce(self) -> None:
        """Wake whoever waits for news."""
        self._version += 1
        if self._news is not None:
            self._news.set()
            self._news = None

    @property
    def version(self) -> int:
        """How often there were news."""
        return self._version

    async def wait(self, version: int) -> None:
        """Wait until there were news after the first `version` ones."""
        while self._version == version:
            if self._news is None:
                self._news = anyio.Event()
            await self._news.wait()

    def _count_at(self, now: float) -> TokenCount:
        second = int(now)
        if not self.tokens or self.tokens[-1].second != second:
            self.tokens.append(TokenCount(second))
        return self.tokens[-1]


def _histograms(span: float) -> dict[Level, SlidingHistogram]:
    return {level: SlidingHistogram(span) for level in LEVELS}

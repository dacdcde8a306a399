"""The texts of one call: a few wait or run at a time, and each that is done lets the next one in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import anyio

from llamalane.errors import LlamalaneError
from llamalane.ids import Level
from llamalane.scheduler.delivery import Ending
from llamalane.scheduler.embedding_request import EmbeddingRequest
from llamalane.scheduler.queue import Slot
from llamalane.scheduler.request import Request
from llamalane.scheduler.result import EmbeddingResult
from llamalane.scheduler.scheduler import Scheduler


class MakeRequest(Protocol):
    """Makes the request for the text of a number, which arrives now, and tells `on_close` how it ends."""

    def __call__(  # noqa: D102
        self, number: int, level: Level, *, begun: bool, on_close: Callable[[Ending], None]
    ) -> EmbeddingRequest: ...


class EmbeddingJob:
    """The requests of one call for `lengths[i]` tokens each, of which `window` are alive at most.

    One that comes after another of its call arrives when that has ended, so that many texts of one call do not stand
    before the single one of another; it has the level that the other had in the end. The first has a slot of the
    queue; those that come for one that has ended need none, and there are more at once while the queue has room.
    """

    def __init__(self, scheduler: Scheduler, lengths: Sequence[int], window: int, make: MakeRequest) -> None:
        self._scheduler = scheduler
        self._lengths = lengths
        self._window = window
        self._make = make
        self._alive: dict[int, EmbeddingRequest] = {}
        self._results: dict[int, EmbeddingResult] = {}
        self._error: LlamalaneError | None = None
        self._over = anyio.Event()
        self.used_tokens = 0
        """The tokens of those texts that have got on a lane and ended."""

    def start(self, level: Level, slot: Slot[Request]) -> None:
        """Let the first text wait in `slot`; raises what `Scheduler.submit` raises."""
        first = self._new(level)
        try:
            self._scheduler.submit(first, slot)
        except BaseException:
            self._alive.clear()
            raise
        self._fill_window(level)

    async def results(self) -> list[EmbeddingResult]:
        """Wait for all texts; raises the error of the first that failed. If the wait is cancelled, so are they."""
        try:
            await self._over.wait()
        finally:
            self._cancel()
        if self._error is not None:
            raise self._error
        return [self._results[number] for number in range(len(self._lengths))]

    def _cancel(self) -> None:
        for request in list(self._alive.values()):
            self._scheduler.cancel(request)

    def _new(self, level: Level) -> EmbeddingRequest:
        number = len(self._results) + len(self._alive)
        request = self._make(
            number, level, begun=bool(self._results), on_close=lambda outcome: self._take(number, outcome)
        )
        self._alive[number] = request
        return request

    def _take(self, number: int, outcome: Ending) -> None:
        """Take note that a request has ended."""
        request = self._alive.pop(number)
        if request.admitted_at is not None:
            self.used_tokens += self._lengths[number]
        if isinstance(outcome, EmbeddingResult):
            self._results[number] = outcome
            if self._error is None:
                self._go_on(request.level)
        else:
            assert isinstance(outcome, LlamalaneError)
            self._error = self._error or outcome
            self._over.set()

    def _go_on(self, level: Level) -> None:
        if len(self._results) == len(self._lengths):
            self._over.set()
        elif self._more:
            self._scheduler.follow(self._new(level))
            self._fill_window(level)

    @property
    def _more(self) -> bool:
        return len(self._results) + len(self._alive) < len(self._lengths)

    def _fill_window(self, level: Level) -> None:
        while self._more and len(self._alive) < self._window and self._scheduler.queue.has_spare(level):
            self._scheduler.follow(self._new(level))

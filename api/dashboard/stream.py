"""The stream that keeps the page up to date: a snapshot, then what has changed, a few times a second at most."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llamalane.api.answers import while_connected
from llamalane.api.dashboard.feed import Feed
from llamalane.api.sse import WAITING, EventWriter, encode_comment, encode_event
from llamalane.errors import TooManyViewersError
from llamalane.scheduler import Engine, EngineState

MOST_VIEWERS = 16
"""So many streams at most: each takes a little of the time of the event loop."""
RETRY_AFTER = 10.0
"""In seconds, for those who come when there are so many."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often something is told, in seconds.

    Attributes:
        interval: at least so long lie two updates apart.
        silence: after so long without news, a comment tells that the connection is alive.
        lifetime: after so long a stream ends, and its viewer opens the next one. A server that waits for its
            connections before it ends waits no longer than that; and a key that was taken back is asked for again.
    """

    interval: float = 0.25
    silence: float = 5.0
    lifetime: float = 30.0


class Viewers:
    """Counts those who follow an engine."""

    def __init__(self, limit: int = MOST_VIEWERS) -> None:
        self.limit = limit
        self.count = 0

    @contextlib.contextmanager
    def enter_nowait(self) -> Iterator[None]:
        """Count one more while the block lasts; raises `TooManyViewersError`."""
        if self.count >= self.limit:
            raise TooManyViewersError(self.limit, RETRY_AFTER)
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


class EventStream(Response):
    """Follows an engine for one viewer, until the viewer goes, the engine ends, or it has lasted for its lifetime.

    Nothing waits to be sent: whoever reads slowly gets the next update later, with all that has changed by then.
    """

    def __init__(
        self, engine: Engine, open_feed: Callable[[], Feed], viewers: Viewers, pace: Pace | None = None
    ) -> None:
        super().__init__()
        self._pace = pace or Pace()
        self._engine = engine
        self._open_feed = open_feed
        self._viewers = viewers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        with self._viewers.enter_nowait():
            writer = EventWriter(send, {})
            await while_connected(receive, lambda: self._follow(writer))
            await writer.end(b"")

    async def _follow(self, writer: EventWriter) -> None:
        recorder, feed = self._engine.view.recorder, self._open_feed()
        version, over = recorder.version, self._over()
        await writer.write(encode_event(feed.snapshot()))
        end = anyio.current_time() + self._pace.lifetime
        while anyio.current_time() < end and not over:
            await anyio.sleep(self._pace.interval)
            with anyio.move_on_after(self._pace.silence):
                await recorder.wait(version)
            if recorder.version == version:
                await writer.write(encode_comment(WAITING))
                continue
            version, over = recorder.version, self._over()
            await writer.write(encode_event(feed.update()))

    def _over(self) -> bool:
        """Whether the engine has ended, or does nothing any more."""
        if self._engine.state is EngineState.DRAINING:
            return self._engine.view.idle
        return self._engine.state is not EngineState.READY

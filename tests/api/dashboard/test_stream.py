"""The stream: a snapshot, then updates, a few in a second at most; whoever reads slowly or goes away costs nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope

from llamalane.api.dashboard.stream import EventStream, Pace, Viewers
from llamalane.errors import TooManyViewersError
from llamalane.scheduler import EngineState
from tests.api.dashboard.lookout import LookedAt, as_engine, feed_of, states_of
from tests.scheduler.harness import Harness

pytestmark = pytest.mark.anyio

SCOPE: Scope = {"type": "http"}
AT_ONCE = Pace(interval=0, silence=3600, lifetime=3600)


class Viewer:
    """A client of one stream, which reads one message after the other, when it is told to."""

    def __init__(self, engine: LookedAt, viewers: Viewers | None = None, pace: Pace = AT_ONCE) -> None:
        self.engine = engine
        self.stream = EventStream(
            as_engine(engine), lambda: feed_of(engine), viewers if viewers is not None else Viewers(), pace
        )
        self.sent, self.received = anyio.create_memory_object_stream[Message](0)
        self.gone = anyio.Event()

    async def run(self) -> None:
        with self.sent, contextlib.suppress(ClientDisconnect):
            await self.stream(SCOPE, self._receive, self.sent.send)

    async def read(self) -> bytes:
        """Wait for the next piece of the body; empty at the end."""
        message = await self.received.receive()
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            assert (b"content-type", b"text/event-stream; charset=utf-8") in message["headers"]
            return await self.read()
        body: bytes = message["body"]
        return body

    async def message(self) -> dict[str, Any]:
        """Wait for the next event's data."""
        event = await self.read()
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        data: dict[str, Any] = json.loads(event[6:])
        return data

    async def _receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


@pytest.fixture
def engine() -> Iterator[LookedAt]:
    harness = Harness((2,))
    yield LookedAt(harness)
    harness.close()


@contextlib.asynccontextmanager
async def following(viewer: Viewer) -> AsyncIterator[None]:
    """Run the stream; at the end of the block the viewer has gone."""
    with anyio.fail_after(20), viewer.received:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(viewer.run)
            yield
            viewer.gone.set()


async def test_a_snapshot_comes_first_and_updates_follow(engine: LookedAt) -> None:
    viewer = Viewer(engine)
    async with following(viewer):
        assert (await viewer.message())["object"] == "dashboard.snapshot"
        request = engine.harness.submit(max_tokens=3)
        engine.harness.tick()
        update = await viewer.message()
        assert (update["object"], states_of(update)) == ("dashboard.update", {request.id: "running"})
        engine.harness.run()
        assert states_of(await viewer.message()) == {request.id: "length"}


async def test_nothing_is_sent_while_nothing_happens(engine: LookedAt) -> None:
    viewer = Viewer(engine)
    async with following(viewer):
        await viewer.message()
        await anyio.wait_all_tasks_blocked()
        assert viewer.sent.statistics().tasks_waiting_send == 0


async def test_a_comment_tells_that_a_silent_connection_is_alive(engine: LookedAt) -> None:
    viewer = Viewer(engine, pace=Pace(interval=0, silence=0.001, lifetime=3600))
    async with following(viewer):
        await viewer.message()
        assert (await viewer.read()).startswith(b":")


async def test_who_reads_slowly_gets_one_update_with_all_that_has_changed(engine: LookedAt) -> None:
    viewer = Viewer(engine)
    async with following(viewer):
        await viewer.message()
        for _ in range(50):
            engine.harness.submit(max_tokens=2)
            engine.harness.run()
            await anyio.wait_all_tasks_blocked()
        # One update was on its way all the time; all the rest is in the one after it.
        first, second = await viewer.message(), await viewer.message()
        assert len(first["requests"]) + len(second["requests"]) in (50, 51)
        await anyio.wait_all_tasks_blocked()
        assert viewer.sent.statistics().tasks_waiting_send == 0


async def test_who_goes_away_makes_room_for_another(engine: LookedAt) -> None:
    viewers = Viewers(1)
    first, second = Viewer(engine, viewers), Viewer(engine, viewers)
    async with following(first):
        await first.message()
        with pytest.raises(TooManyViewersError, match="1 dashboards are open"):
            await second.stream(SCOPE, second._receive, second.sent.send)
    assert viewers.count == 0
    async with following(second):
        await second.message()
    assert viewers.count == 0


async def test_who_goes_away_without_having_read_is_noticed(engine: LookedAt) -> None:
    viewers = Viewers()
    viewer = Viewer(engine, viewers)
    async with following(viewer):
        await anyio.wait_all_tasks_blocked()
    assert viewers.count == 0


async def test_a_stream_ends_after_its_lifetime(engine: LookedAt) -> None:
    viewer = Viewer(engine, pace=Pace(interval=0, silence=0.001, lifetime=0.001))
    async with following(viewer):
        await viewer.message()
        while await viewer.read():
            pass


async def test_a_stream_goes_on_while_the_server_drains_and_ends_with_the_last_request(engine: LookedAt) -> None:
    viewer = Viewer(engine)
    async with following(viewer):
        await viewer.message()
        engine.harness.submit(max_tokens=3)
        engine.state = EngineState.DRAINING
        engine.harness.tick()
        assert (await viewer.message())["state"] == "draining"
        engine.harness.run()
        assert list(states_of(await viewer.message()).values()) == ["length"]
        assert await viewer.read() == b""


async def test_a_stream_ends_with_the_engine(engine: LookedAt) -> None:
    viewer = Viewer(engine)
    async with following(viewer):
        await viewer.message()
        engine.state = EngineState.CLOSED
        engine.view.recorder.announce()
        assert (await viewer.message())["state"] == "closed"
        assert await viewer.read() == b""

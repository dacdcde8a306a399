from __future__ import annotations

import json

import anyio
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from llamalane.api.sse import ChunkEncoder, EventWriter

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("usage", [False, True])
def test_a_framed_chunk_is_the_chunk(usage: bool) -> None:
    encoder = ChunkEncoder({"id": "x", "model": 'a"b'}, usage=usage)
    text = 'a "text"\n'
    framed = encoder.text_frame('{"index":0,"text":', "}").encode(text)
    assert framed == encoder.chunk({"index": 0, "text": text})
    fields = json.loads(framed.removeprefix(b"data: "))
    assert ("usage" in fields) is usage


class Client:
    """Takes what a writer sends; each body takes a while."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.wait: anyio.Event | None = None
        self.waits = anyio.Event()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.log.append(b"head")
            return
        self.log.append(b"begin")
        await anyio.lowlevel.checkpoint()
        if self.wait is not None:
            self.waits.set()
            await self.wait.wait()
        self.log.append(message["body"])


async def test_writers_take_turns_and_nothing_is_lost() -> None:
    client = Client()
    writer = EventWriter(client.send, {})

    async def write(name: bytes) -> None:
        for number in b"012":
            await writer.write(name + bytes([number]))

    async with anyio.create_task_group() as tasks:
        for name in (b"a", b"b", b"c"):
            tasks.start_soon(write, name)
    head, *log = client.log
    assert head == b"head"
    assert log[::2] == [b"begin"] * 9
    for name in (b"a", b"b", b"c"):
        assert [event for event in log[1::2] if event.startswith(name)] == [name + b"0", name + b"1", name + b"2"]


async def test_the_head_goes_out_with_the_first_event() -> None:
    client = Client()
    writer = EventWriter(client.send, {"X-Priority": "1"})
    await anyio.wait_all_tasks_blocked()
    assert not writer.begun
    assert client.log == []
    await writer.end(b"event")
    assert writer.begun
    assert client.log == [b"head", b"begin", b"event"]


async def test_a_writer_that_is_cancelled_lets_the_next_one_write() -> None:
    client = Client()
    writer = EventWriter(client.send, {})
    client.wait = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.write, b"first")
        await client.waits.wait()
        tasks.cancel_scope.cancel()
    client.wait = None
    await writer.write(b"second")
    assert client.log == [b"head", b"begin", b"begin", b"second"]


async def test_a_write_under_way_is_not_cut_off_when_writing_stops() -> None:
    client = Client()
    writer = EventWriter(client.send, {})
    client.wait = release = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for event in (b"first", b"second"):
            tasks.start_soon(writer.write, event)
        await client.waits.wait()

        async def stop() -> None:
            await writer.stop()
            tasks.cancel_scope.cancel()

        tasks.start_soon(stop)
        await anyio.wait_all_tasks_blocked()
        release.set()
    await writer.end(b"end")
    assert client.log[:2] == [b"head", b"begin"]
    assert client.log[2] in (b"first", b"second")
    assert client.log[-1] == b"end"
    assert client.log.count(b"begin") == len(client.log) // 2


async def test_a_server_that_cannot_send_means_that_the_client_is_gone() -> None:
    async def send(message: Message) -> None:
        raise BrokenPipeError

    with pytest.raises(ClientDisconnect):
        await EventWriter(send, {}).write(b"event")

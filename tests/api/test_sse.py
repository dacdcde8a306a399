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


async def test_writers_take_turns_and_nothing_is_lost() -> None:
    log: list[bytes] = []

    async def slow_send(message: Message) -> None:
        log.append(b"begin")
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        log.append(message["body"])

    writer = EventWriter(slow_send)

    async def write(name: bytes) -> None:
        for number in b"012":
            await writer.write(name + bytes([number]))

    async with anyio.create_task_group() as tasks:
        for name in (b"a", b"b", b"c"):
            tasks.start_soon(write, name)
    assert log[::2] == [b"begin"] * 9
    for name in (b"a", b"b", b"c"):
        assert [event for event in log[1::2] if event.startswith(name)] == [name + b"0", name + b"1", name + b"2"]


async def test_a_writer_that_is_cancelled_lets_the_next_one_write() -> None:
    written: list[bytes] = []
    blocked = anyio.Event()

    async def send(message: Message) -> None:
        if not blocked.is_set():
            blocked.set()
            await anyio.sleep_forever()
        written.append(message["body"])

    writer = EventWriter(send)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.write, b"first")
        await blocked.wait()
        tasks.cancel_scope.cancel()
    await writer.write(b"second")
    assert written == [b"second"]


async def test_a_server_that_cannot_send_means_that_the_client_is_gone() -> None:
    async def send(message: Message) -> None:
        raise BrokenPipeError

    with pytest.raises(ClientDisconnect):
        await EventWriter(send).write(b"event")

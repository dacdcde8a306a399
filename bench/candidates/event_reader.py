"""An event loop in a process of its own, which reads the events of steps from a socket; run as a module."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import marshal
import socket
import struct
import sys
import time

Event = tuple[int, int, int, str, str | None]
"""A request, its step, its token, the token's text, and why it ended, if it did."""
LENGTH = struct.Struct("<I")
"""Stands before each step's events: how many bytes they are."""
READY = b"!"
"""Is said once, when the events may come."""


class EventReader(asyncio.Protocol):
    """Takes the events of steps apart; `ended` is set when there will be no more."""

    def __init__(self) -> None:
        self.events = 0
        self.begin = 0.0
        self.ended = asyncio.Event()
        self._data = bytearray()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        self._data += data
        while len(self._data) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._data)
            end = LENGTH.size + size
            if len(self._data) < end:
                break
            events: list[Event] = marshal.loads(self._data[LENGTH.size : end])
            del self._data[:end]
            self.events += sum(1 for _ in events)
        self.begin = self.begin or time.thread_time()  # the first step has all that is done once

    def connection_lost(self, error: Exception | None) -> None:
        """Stop."""
        self.ended.set()


async def read_events(source: socket.socket) -> tuple[int, float]:
    """Read to the end; returns how many events came, and the CPU seconds of all steps but the first."""
    reader = EventReader()
    source.sendall(READY)
    await asyncio.get_running_loop().create_connection(lambda: reader, sock=source)
    await reader.ended.wait()
    return reader.events, time.thread_time() - reader.begin


def _main() -> None:
    factory = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop  # noqa: PLC0415  (optional)

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        events, seconds = runner.run(read_events(socket.socket(fileno=int(sys.argv[1]))))
    print(json.dumps({"events": events, "seconds": seconds}))


if __name__ == "__main__":
    _main()

"""The clients of a soak: some read their answers, and some vanish before, meanwhile, or after reading slowly."""

from __future__ import annotations

import enum
import json
import random
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketAttribute, SocketStream

from llamalane.bench.soak.asking import CONFLICT, FULL, LATE, OK, Ask, Asker

PATIENCE = 120.0
"""So many seconds a client waits for an answer, at most; a longer wait is a fault."""
_SHORT, _LONG = 0.05, 0.4
_SLOW_READS = 20
_SMALL = 512
"""A slow reader takes so many bytes at once, and its socket keeps little more."""
_HANG_UP = struct.pack("ii", 1, 0)
_ERRORS_IN_STREAMS = frozenset({"shed", "deadline_exceeded", "superseded"})
"""What may end a stream that has begun."""


class Manner(enum.Enum):
    """How a client behaves."""

    READ = "reads to the end"
    LEAVE = "leaves before the answer"
    BREAK_OFF = "leaves in the middle of it"
    SLOW = "reads slowly, and leaves"


VANISHING = (Manner.LEAVE, Manner.BREAK_OFF, Manner.SLOW)


@dataclass(slots=True)
class Tally:
    """What became of the requests: by status for those that read, by manner for those that left. `faults` tells what
    should not be, with a few examples of each."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    manners: Counter[Manner] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def refused(self) -> int:
        """How many were refused, or ended, as was to be expected."""
        return sum(self.statuses[status] for status in (FULL, LATE, CONFLICT))


class Client:
    """Sends single requests, each over a connection of its own."""

    def __init__(self, address: tuple[str, int], asker: Asker, tally: Tally, seed: int) -> None:
        self._address = address
        self._asker = asker
        self._tally = tally
        self._random = random.Random(seed)

    async def ask(self, *, vanishing: float) -> None:
        """Send a request, and vanish with the probability `vanishing`."""
        ask = self._asker.draw()
        vanishes = self._random.random() < vanishing
        manner = self._random.choice(VANISHING) if vanishes else Manner.READ
        self._tally.manners[manner] += 1
        self._tally.kinds[ask.kind] += 1
        try:
            with anyio.fail_after(PATIENCE):
                await self._converse(ask, manner)
        except TimeoutError:
            self._fault(ask, f"no end within {PATIENCE:g} s")
        except (OSError, anyio.BrokenResourceError) as error:
            if manner is Manner.READ:
                self._fault(ask, f"the connection failed: {error or type(error).__name__}")
        self._tally.requests += 1

    async def _converse(self, ask: Ask, manner: Manner) -> None:
        async with await anyio.connect_tcp(*self._address) as stream:
            plain: socket.socket = stream.extra(SocketAttribute.raw_socket)
            if manner is Manner.SLOW:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
            await stream.send(ask.encode())
            if manner is Manner.READ:
                self._check(ask, await _read_all(stream))
                return
            await self._dawdle(stream, manner)
            if self._random.random() < 0.5:  # the server is told at once, instead of when it writes
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _HANG_UP)

    async def _dawdle(self, stream: SocketStream, manner: Manner) -> None:
        if manner is Manner.LEAVE:
            await anyio.sleep(self._random.uniform(0, _LONG))
            return
        try:
            for _ in range(self._random.randint(1, _SLOW_READS)):
                if manner is Manner.SLOW:
                    await anyio.sleep(self._random.uniform(0, _SHORT))
                await stream.receive(_SMALL)
        except anyio.EndOfStream:
            return

    def _check(self, ask: Ask, answer: bytes) -> None:
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
        self._tally.statuses[status] += 1
        if status not in ask.allowed:
            self._fault(ask, f"{status}: {body[:200]!r}")
        elif status == OK and ask.streams and not _is_whole(body):
            self._fault(ask, f"the stream was cut off: …{body[-200:]!r}")

    def _fault(self, ask: Ask, what: str) -> None:
        self._tally.faults[f"{ask.kind}: {what}"] += 1


async def _read_all(stream: SocketStream) -> bytes:
    blocks = []
    try:
        while True:
            blocks.append(await stream.receive())
    except anyio.EndOfStream:
        return b"".join(blocks)


def _is_whole(body: bytes) -> bool:
    """Return whether a stream's body, in chunks, ends as it should: with its end, or an error that may come late."""
    if not body.endswith(b"0\r\n\r\n"):
        return False
    last = [line for line in body.splitlines() if line.startswith(b"data: ")][-1].removeprefix(b"data: ")
    return last == b"[DONE]" or json.loads(last).get("error", {}).get("code") in _ERRORS_IN_STREAMS

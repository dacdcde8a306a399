"""Counts what a server writes to its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(slots=True)
class WriteCounter:
    """How often connections were written to, and how much."""

    writes: int = 0
    bytes: int = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the writes of uvicorn's connections that are made during the block."""
        before = H11Protocol.connection_made

        def connection_made(protocol: H11Protocol, transport: asyncio.Transport) -> None:
            before(protocol, _Counted(transport, self))  # type: ignore[arg-type]  # it stands for the transport

        setattr(H11Protocol, "connection_made", connection_made)  # noqa: B010  (mypy takes no assignment)
        try:
            yield
        finally:
            setattr(H11Protocol, "connection_made", before)  # noqa: B010


class _Counted:
    """A transport whose writes are counted."""

    def __init__(self, transport: asyncio.Transport, counter: WriteCounter) -> None:
        self._transport = transport
        self._counter = counter

    def write(self, data: bytes) -> None:
        self._counter.writes += 1
        self._counter.bytes += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

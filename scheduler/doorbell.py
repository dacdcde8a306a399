"""Wakes an event loop, from its own thread or from another one. The one place that tells asyncio from trio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel


class Doorbell:
    """Rung when there is something to do; rings that come before the loop looks count as one.

    Made on the event loop. A lane's thread must not block until the loop has time for it, which rules out
    `anyio.from_thread`.
    """

    def __init__(self) -> None:
        self._rung = anyio.Event()
        self._call_soon = call_soon_threadsafe()
        self._on_its_way = False

    def ring(self) -> None:
        """Wake the loop; on the loop's thread."""
        self._on_its_way = False
        self._rung.set()

    def ring_from_thread(self) -> None:
        """Wake the loop; from any thread. Once the event loop has ended there is nobody to wake."""
        if self._on_its_way:
            return
        self._on_its_way = True
        with contextlib.suppress(RuntimeError):
            self._call_soon(self.ring)

    async def wait(self, seconds: float | None) -> None:
        """Wait for a ring, at most so many seconds."""
        with anyio.move_on_after(seconds):
            await self._rung.wait()
        self._rung = anyio.Event()


def call_soon_threadsafe() -> Callable[[Callable[[], Any]], Any]:
    """Return what lets the running event loop call something soon, from any thread and without waiting for it.

    Raises `RuntimeError` when it is called after the loop has ended.
    """
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:  # not on asyncio, so on trio
        import trio  # noqa: PLC0415  (optional: only who runs on trio has it)

        return trio.lowlevel.current_trio_token().run_sync_soon


def in_event_loop() -> bool:
    """Return whether this thread runs an event loop, which stands still while anything blocks the thread."""
    try:
        anyio.lowlevel.current_token()
    except RuntimeError:
        return False
    return True

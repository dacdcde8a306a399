"""Brings saved cells to the disk beside the scheduler, which never waits for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import anyio

from llamalane.kvcache import DiskStore

logger = logging.getLogger(__name__)

LEAST_TOKENS = 256
"""Shorter prompts are computed again sooner than it is worth to keep them over a restart."""
_WAITING = 16
"""So many states may wait for the disk at once; what comes then is not kept."""


class _State(NamedTuple):
    scope: str
    tokens: Sequence[int]
    data: bytearray
    whole: bool


class Archive:
    """Writes what it is given to `disk`, one after the other, in a worker thread."""

    def __init__(self, disk: DiskStore) -> None:
        self.disk = disk
        self._inbox, self._outbox = anyio.create_memory_object_stream[_State](_WAITING)
        self._done = anyio.Event()

    def put_nowait(self, scope: str, tokens: Sequence[int], data: bytearray, *, whole: bool) -> None:
        """Keep saved cells, unless they are few, or too much waits for the disk already; `data` must not change."""
        if len(tokens) < LEAST_TOKENS:
            return
        try:
            self._inbox.send_nowait(_State(scope, tokens, data, whole))
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return

    async def run(self) -> None:
        """Write until `finish` was called and everything is written."""
        try:
            async with self._outbox:
                async for state in self._outbox:
                    save = partial(self.disk.save, state.scope, state.tokens, state.data, whole=state.whole)
                    failures = self.disk.statistics().failures
                    if not await anyio.to_thread.run_sync(save) and self.disk.statistics().failures > failures:
                        logger.warning("a prompt could not be kept on disk: is kv.disk there, and not full?")
        finally:
            self._inbox.close()
            self._done.set()

    async def finish(self) -> None:
        """Take no more, and wait until everything is written."""
        self._inbox.close()
        await self._done.wait()

"""Removes files and batches whose time is over, at the moment at which it is."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from llamalane.api.batches.store import BatchStore
from llamalane.errors import BatchStoreError

logger = logging.getLogger("llamalane.api.batches")

WallClock = Callable[[], float]
"""Returns the seconds since 1970: unlike a monotonic clock's, they mean the same after a restart."""


async def remove_expired(store: BatchStore, retention: float | None, now: WallClock) -> None:
    """Remove files whose time is over, and batches that ended `retention` seconds ago, until cancelled."""
    while True:
        expiry: float | None = None
        try:
            ids = await store.delete_expired(int(now()), retention)
            expiry = await store.next_expiry(retention)
        except BatchStoreError as error:
            logger.error("files whose time is over stay: %s", error)
        else:
            if ids:
                logger.info("removed %d files whose time was over", len(ids))
        with anyio.move_on_after(None if expiry is None else expiry - now()):
            await store.wait_for_other_expiry()


def earliest(created: int, *lifetimes: float | None) -> int | None:
    """Return when a file expires that was made at `created` and is kept for the shortest of some times, in seconds."""
    return min((created + int(seconds) for seconds in lifetimes if seconds is not None), default=None)
